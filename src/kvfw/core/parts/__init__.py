"""What a part is, and the light record that announces one."""
