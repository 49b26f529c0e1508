"""The report of a job in the forms that people read: text, Markdown, and one page of HTML."""
