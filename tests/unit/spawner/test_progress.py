import asyncio

from carme_spawner.progress import Progress


def test_a_line_only_when_something_changed_and_never_html():
    """JupyterHub's page shows `message` as text; `html_message` it would take as it is."""
    progress = Progress()
    told = []

    async def listen():
        async for line in progress.lines():
            told.append(line)
            if line["progress"] == 90:
                return

    async def speak():
        for step, text in ((20, "waits"), (20, "waits"), (60, "<b>gpu01</b>"), (90, "up")):
            await progress.say(step, text)
            await asyncio.sleep(0.01)

    async def both():
        await asyncio.gather(listen(), speak())

    asyncio.run(both())
    assert [line["message"] for line in told] == ["Asking Slurm", "waits", "<b>gpu01</b>", "up"]
    assert all(set(line) == {"progress", "message"} for line in told)
