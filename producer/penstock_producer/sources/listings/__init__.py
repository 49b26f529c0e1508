"""The files of a folder, and the objects below a prefix, in the order of their names."""
