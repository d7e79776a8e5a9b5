"""Jobs that run at the same time, for tests."""

import threading


def in_threads(*jobs):
    """Runs every job in a thread of its own, all at once; raises what the first one raised."""
    barrier, failures = threading.Barrier(len(jobs)), []

    def body(job):
        try:
            barrier.wait(60)
            job()
        except BaseException as error:  # noqa: B036
            failures.append(error)

    threads = [threading.Thread(target=body, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
