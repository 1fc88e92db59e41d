"""Small builders and slow references for the tests."""
