"""Kaldi's folders of sounds: `wav.scp` names the files, `text` has the transcripts, and each line begins with an id.

segments    optional: the id of an utterance, the id of its file, and where it starts and ends, in seconds
utt2spk     optional: the id of an utterance, and its speaker
"""

from collections.abc import Iterator
from pathlib import Path

from qkv.data.readers.contents import choose_columns
from qkv.data.readers.find_files import KALDI_FILES, FileGroup
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import QkvError


def read_kaldi(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """A record for each utterance: audio (the path of a file), text, speaker, start and end."""
    scp, problems = group.paths[0], context.problems
    files, texts, segments, speakers = (read_table(scp.with_name(name)) for name in KALDI_FILES)
    for number, name in enumerate(segments or files, start=1):
        problems.num_seen += 1
        location = FileLocation(str(scp), number)
        recording, *times = segments.get(name, name).split()
        if recording not in files:
            problems.skip("unknown recording", location, f"wav.scp has no line for {recording!r}")
            continue
        if files[recording].endswith("|"):
            problems.skip("command", location, "a command, which is never run; write the path of a sound file")
            continue
        fields = {"audio": files[recording], **dict(zip(("start", "end"), times, strict=False))}
        fields |= {"text": texts[name]} if name in texts else {}
        fields |= {"speaker": speakers[name]} if name in speakers else {}
        yield Record(choose_columns(fields, context.options.columns), location)
    if context.on_bytes:
        context.on_bytes(sum(path.stat().st_size for path in group.paths))


def read_table(path: Path) -> dict[str, str]:
    """The rest of each line by its first word; {} if there is no such file."""
    if not path.is_file():
        return {}
    try:
        lines = (line.split(None, 1) for line in path.read_text(encoding="utf-8").splitlines())
        return {parts[0]: parts[1].strip() if len(parts) > 1 else "" for parts in lines if parts}
    except UnicodeDecodeError as error:
        raise QkvError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); convert it to UTF-8") from None
