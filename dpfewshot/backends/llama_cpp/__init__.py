"""GGUF models through llama.cpp, in this process."""
