"""Where experts should be, and what moving them gains."""
