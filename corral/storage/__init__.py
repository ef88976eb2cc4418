"""Keep states, sessions and chats in memory and on disk."""
