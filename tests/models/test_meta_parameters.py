"""meta_parameters, alone, nested and in several threads."""

from threading import Event, Thread

import pytest
from torch import nn

from nvfp4kern.checkpoint import meta_parameters


def is_meta():
    return nn.Linear(2, 2).weight.is_meta


def test_nested_and_after_an_error():
    register = nn.Module.register_parameter
    with pytest.raises(KeyError), meta_parameters():
        with meta_parameters():
            assert is_meta()
        assert is_meta()
        raise KeyError
    assert not is_meta() and nn.Module.register_parameter is register


def test_threads_that_leave_in_any_order():
    """The first one in is the first one out; a third is never inside."""
    register = nn.Module.register_parameter
    first_in, both_in, first_out, seen = Event(), Event(), Event(), {}

    def first():
        with meta_parameters():
            first_in.set()
            both_in.wait(60)
            seen["first"] = is_meta()
        first_out.set()

    def second():
        first_in.wait(60)
        with meta_parameters():
            both_in.set()
            first_out.wait(60)
            seen["second"] = is_meta()

    threads = [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    both_in.wait(60)
    seen["third"] = is_meta()
    for thread in threads:
        thread.join()
    assert seen == {"first": True, "second": True, "third": False}
    assert not is_meta() and nn.Module.register_parameter is register
