"""Each file is one step of the schema. A step that was released is never edited."""
