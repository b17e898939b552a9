"""`tfm serve`: an HTTP server that translates; LibreTranslate's and DeepL's clients can speak to it. No torch.

Importing any of the modules raises `UserError` where what it is made of is not installed.
"""

from transformer_cli.errors import UserError

try:
    import prometheus_client
    import python_multipart
    import starlette
    import uvicorn
except ModuleNotFoundError as error:
    raise UserError(
        f"tfm serve needs {error.name}, which is not installed: pip install 'transformer-cli[serve]'"
    ) from None

__all__ = ["prometheus_client", "python_multipart", "starlette", "uvicorn"]
