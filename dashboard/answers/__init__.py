"""What pages ask the analyses, each once."""
