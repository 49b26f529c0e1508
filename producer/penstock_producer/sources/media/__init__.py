"""Images and sounds that rows name: addresses are passed on, files and objects are put into the
request."""
