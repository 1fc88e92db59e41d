"""Where is it: a few plain sentences scattered over a long text, to be put together."""
