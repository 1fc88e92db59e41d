"""The models that come with kvfw."""
