"""`tfm serve`: an HTTP server that translates; LibreTranslate's and DeepL's clients can speak to it. No torch."""
