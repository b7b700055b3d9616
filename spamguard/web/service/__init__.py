"""What people may see and do, whatever way they ask: values in, values out. Knows nothing of HTTP."""
