"""Expert load: who is hot, what it costs, what moving experts would gain."""
