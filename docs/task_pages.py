"""Write the references of the pages on tasks, and the types of calls, from the declarations of the tasks:

python docs/task_pages.py
"""

from pathlib import Path

from qkv.tasks.table import TASKS
from qkv.tasks.task_page import insert_reference
from qkv.tasks.write_call_types import render_call_types

for task in TASKS.values():
    page = Path(__file__).parent / "tasks" / f"{task.name}.md"
    page.write_text(insert_reference(page.read_text(encoding="utf-8"), task), encoding="utf-8")

types = Path(__file__).parent.parent / "src" / "qkv" / "tasks" / "call_types.py"
types.write_text(render_call_types(), encoding="utf-8")
