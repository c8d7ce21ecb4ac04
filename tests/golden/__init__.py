"""Golden transcripts: what a core does, event by event, in words that can be read and compared."""
