"""vLLM's server with our layers under load: every request gets the tokens that it gets alone.

On CPUs vLLM has no NVFP4 methods of its own, so an answer is one of ours.
"""

import http.client
import json
import os
import random
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.util import find_spec

import checkpoints
import pytest
from run_vllm import ENVIRONMENT

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed"),
    pytest.mark.slow,
]
REQUESTS, CANCELLED = 200, 40
SECONDS = 240


def free_port():
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        return at.getsockname()[1]


class Server:
    """It listens on loopback. Greedy requests of token ids alone: there is no tokenizer."""

    def __init__(self, folder, at):
        self.port, self.log = free_port(), at / "log"
        own = {k: v for k, v in os.environ.items() if not k.startswith("NVFP4KERN_")}
        own |= ENVIRONMENT | {
            "VLLM_CACHE_ROOT": str(at / "cache"),
            "NVFP4KERN_BATCH_INVARIANT": "1",
        }
        del own["VLLM_ENABLE_V1_MULTIPROCESSING"]
        command = ["-m", "vllm.entrypoints.openai.api_server", "--model", folder]
        command += ["--skip-tokenizer-init"]  # `vllm serve` asks for a package called vllm
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "tiny"]
        command += ["--dtype", "float16", "--enforce-eager", "--max-model-len", "64"]
        command += ["--max-num-seqs", "32", "--no-enable-prefix-caching"]
        with open(self.log, "w") as out:
            self.process = subprocess.Popen(
                [sys.executable, *command], env=own, stdout=out, stderr=subprocess.STDOUT
            )

    def connection(self):
        return closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS))

    def wait(self):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with self.connection() as at:
                    at.request("GET", "/health")
                    with at.getresponse() as answer:
                        if answer.status == 200:
                            return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-6000:])

    def ask(self, prompt, tokens, cancel=False):
        """The tokens; or None, having left after the first of them."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, "stream": cancel}
        headers = {"Content-Type": "application/json"}
        with self.connection() as at:
            at.request("POST", "/v1/completions", json.dumps(body), headers)
            with at.getresponse() as answer:
                text = answer.read(8 if cancel else None)
        assert answer.status == 200, text
        if cancel:
            return None
        return json.loads(text)["choices"][0]["token_ids"]


@pytest.fixture(params=["llama", "qwen3_moe"])
def server(request, tmp_path):
    options = {"spread": True, "exclude": ("*mlp.gate",)}
    folder = checkpoints.make(tmp_path / "model", request.param, "modelopt-w4a16", **options)
    made = Server(folder, tmp_path)
    try:
        made.wait()
        yield made
    finally:
        made.process.terminate()
        try:
            made.process.wait(60)
        finally:
            made.process.kill()


def test_many_requests_at_a_time_get_the_tokens_of_each_alone(server):
    draw = random.Random(0)
    jobs = [
        ([draw.randrange(2, 128) for _ in range(draw.randrange(1, 40))], draw.randrange(1, 24))
        for _ in range(REQUESTS)
    ]
    cancelled = set(draw.sample(range(REQUESTS), CANCELLED))
    with ThreadPoolExecutor(REQUESTS) as threads:
        asked = [threads.submit(server.ask, *job, i in cancelled) for i, job in enumerate(jobs)]
        answers = [each.result(SECONDS) for each in asked]
    assert [i for i, each in enumerate(answers) if each is None] == sorted(cancelled)
    for i in draw.sample(sorted(set(range(REQUESTS)) - cancelled), 60):
        assert len(answers[i]) == jobs[i][1]
        assert answers[i] == server.ask(*jobs[i]), i
