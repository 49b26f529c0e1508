"""Remember what is true: SQL tables and Redis keys, behind typed stores."""
