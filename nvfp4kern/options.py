"""What commands share whose own modules need torch, which --help does not: options, errors."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

DTYPES = ("auto", "bfloat16", "float16", "float32")
TOKENS, CONTEXT = 1 << 14, 512
"""Of a text that is compared, and of a sequence of it."""


def exit_status(
    command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace
) -> int:
    """0 once it has run; 2 after an error in words, 130 interrupted. What lacks a module raises."""
    try:
        command(arguments)
    except ModuleNotFoundError:
        raise
    except (ImportError, ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def add_device_and_dtype(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there is one")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="of what is not NVFP4; default: auto, the folder's",
    )


def text_of(option: str, path: Path) -> str:
    """What a file of an option says. Raises ValueError, which names both."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{option}: {error}, expected a file of UTF-8") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{option}: {path}: {error}, expected a file of UTF-8") from error


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a Hugging Face folder, NVFP4 or not")
    parser.add_argument(
        "prompt", metavar="PROMPT", help="what a user says, where the tokenizer has a chat template"
    )
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default: 128")
    add_device_and_dtype(parser)
    parser.add_argument(
        "--raw", action="store_true", help="the prompt as it is, without the chat template"
    )
    parser.add_argument(
        "--sample",
        action="store_true",
        help="draws tokens as the folder's generation configuration says; default: the likeliest",
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="draws tokens at this temperature"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draw; default: 0")
    parser.add_argument(
        "--compile", action="store_true", help="decodes by torch.compile, with a static cache"
    )


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", metavar="REFERENCE", help="the folder that FOLDER was made of")
    parser.add_argument("folder", metavar="FOLDER", help="a Hugging Face folder, such as NVFP4")
    parser.add_argument(
        "--text", type=Path, metavar="FILE", required=True, help="UTF-8, of which tokens are made"
    )
    parser.add_argument(
        "--tokens", type=int, default=TOKENS, metavar="N", help=f"of the text; default: {TOKENS}"
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help=f"tokens of a sequence; default: {CONTEXT}, or the model's positions",
    )
    add_device_and_dtype(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes all figures, layer by layer"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draws errors of layers and the KL of tokens"
    )
