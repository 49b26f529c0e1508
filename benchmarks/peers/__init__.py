"""What others do with the same calls: bare loops, curator and Ray Data LLM."""
