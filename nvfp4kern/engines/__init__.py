"""What the plugins of vLLM and SGLang share. Knows neither."""
