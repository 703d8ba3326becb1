"""The two documents that the tiny checkpoint knows by heart, and what it answers for each page.

    python pages.py FOLDER      writes fixture.pdf, failing.pdf and truth.json

Truth and drawing come from one list, so they cannot disagree. ``fixture.pdf`` is read right; on each page of
``failing.pdf`` the model fails in a way of its own. Only ``write`` needs reportlab: the training imports the rest.
"""

from __future__ import annotations

import html
import json
import sys
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 595.0, 842.0  # points
TURNS = {0: "up", 90: "right", 180: "down", 270: "left"}
LOOP = "round " * 27  # all its letters differ, so that each alone tells the next


@dataclass
class Block:
    """One block.

    Attributes:
        kind: MinerU's type.
        box: x1, y1, x2, y2 in thousandths of the page, from its upper left corner.
        lines: what is drawn; for a table its rows, cells separated by ``|``, where ``<`` continues the cell before it.
        angle: by how many degrees the text is turned clockwise.
        merge: whether it continues the text block before it.
        answer: what the model says, if that is not the lines joined by spaces.
    """

    kind: str
    box: tuple[int, int, int, int]
    lines: list[str] = field(default_factory=list)
    angle: int = 0
    merge: bool = False
    answer: str | None = None

    def layout(self) -> str:
        """The block's line in the answer to the layout prompt."""
        box = " ".join(f"{edge:03d}" for edge in self.box)
        line = f"<|box_start|>{box}<|box_end|><|ref_start|>{self.kind}<|ref_end|><|rotate_{TURNS[self.angle]}|>"
        return line + "<|txt_contd_tgt|>" * self.merge

    def said(self) -> str | None:
        """What the model answers for the block's crop; None where it is not asked."""
        if self.kind == "image":
            return None
        if self.kind == "table":
            return "".join(
                "".join("<lcel>" if cell == "<" else f"<fcel>{cell}" for cell in row.split("|")) + "<nl>"
                for row in self.lines
            )
        return self.answer or " ".join(self.lines)

    def content(self) -> str | None:
        """What mineru-vl-utils makes of the answer."""
        if self.kind == "table":
            return f"<table>{''.join(map(html_row, self.lines))}</table>"
        return f"\\[\n{self.said()}\n\\]" if self.kind == "equation" else self.said()

    def truth(self) -> dict[str, Any]:
        """The block as the client returns it."""
        truth = {
            "type": self.kind,
            "bbox": [edge / 1000 for edge in self.box],
            "angle": self.angle,
            "content": self.content(),
        }
        return truth | ({"merge_prev": self.merge} if self.kind == "text" else {})


@dataclass
class Page:
    """One page.

    Attributes:
        blocks: in reading order.
        hatched: lines drawn across the page: how many, and whether both ways.
        layout: the model's answer to the layout prompt, if it is not the blocks' lines.
    """

    blocks: list[Block]
    hatched: tuple[int, bool] | None = None
    layout: str | None = None

    def answer(self) -> str:
        """The model's answer to the layout prompt."""
        return "\n".join(block.layout() for block in self.blocks) if self.layout is None else self.layout


def html_row(row: str) -> str:
    """One row of a table as HTML."""
    cells: list[list[Any]] = []
    for cell in row.split("|"):
        if cell == "<":
            cells[-1][1] += 1
        else:
            cells.append([html.escape(cell), 1])
    spans = (f' colspan="{span}"' if span > 1 else "" for _, span in cells)
    return "<tr>" + "".join(f"<td{span}>{cell}</td>" for span, (cell, _) in zip(spans, cells, strict=True)) + "</tr>"


FIXTURE = [
    Page(
        [
            Block("title", (120, 80, 620, 115), ["The Lower Bench"]),
            Block(
                "text",
                (120, 160, 880, 235),
                [
                    "The quarry opened on a ridge of grey limestone",
                    "above the river, and its first bench followed",
                    "the bedding for eleven years.",
                ],
            ),
            Block(
                "text",
                (120, 270, 880, 345),
                [
                    "Water rose in the second spring. A pump was",
                    "brought from the mill, and the crew cut drains",
                    "along the northern face.",
                ],
            ),
            Block("page_number", (485, 935, 515, 955), ["17"]),
        ]
    ),
    Page(
        [
            Block("title", (100, 70, 560, 105), ["Two Ways Down"]),
            Block(
                "text",
                (100, 150, 480, 270),
                [
                    "The cart road leaves the",
                    "yard by the gate and falls",
                    "slowly to the ford, where",
                    "oxen are changed.",
                ],
            ),
            Block(
                "text",
                (100, 310, 480, 400),
                ["The incline is shorter. Its", "rope runs over a drum, and", "the full wagons draw"],
            ),
            Block("text", (520, 150, 900, 210), ["the empty ones up to the", "top of the hill."], merge=True),
            Block(
                "text",
                (520, 250, 900, 340),
                ["Frost decides which is used:", "ice on the rope has broken", "three drums since May."],
            ),
            Block("page_number", (485, 935, 515, 955), ["18"]),
        ]
    ),
    Page(
        [
            Block("table_caption", (150, 90, 850, 120), ["Table 3. Stone raised, in tonnes"]),
            Block(
                "table",
                (150, 140, 850, 320),
                ["Bench|Stone sold|<", "Upper|grey|412", "Middle|blue|97", "Lower|rubble & lime|1058"],
            ),
            Block(
                "text",
                (120, 370, 880, 425),
                ["Half of the rubble went to the lime kilns, and", "none was sold after the strike."],
            ),
            Block("page_number", (485, 935, 515, 955), ["19"]),
        ]
    ),
    Page(
        [
            Block(
                "text",
                (120, 80, 880, 135),
                ["A derrick lifts each block clear of the face", "before the next course is split."],
            ),
            Block("image", (250, 180, 750, 480)),
            Block("image_caption", (300, 500, 700, 530), ["Figure 2. The derrick"]),
            Block("equation", (380, 580, 620, 615), ["W = 27 abh"]),
            Block("text", (120, 650, 880, 680), ["Here a, b and h are the edges in metres."]),
        ]
    ),
    Page(
        [
            Block("header", (120, 40, 420, 60), ["Notes of the surveyor"]),
            Block(
                "text",
                (120, 120, 680, 220),
                ["Levels were taken from the", "old chapel step. Each mark is", "cut twice, in case one is lost."],
            ),
            Block("text", (760, 120, 830, 340), ["This strip was pinned", "along the edge."], angle=90),
            Block("aside_text", (40, 300, 75, 480), ["Received on 4 June"], angle=270),
        ]
    ),
]
FAILING = [
    Page([], hatched=(12, False), layout="no box can be drawn on this page"),
    Page(
        [
            Block("title", (120, 80, 560, 115), ["Going Around"]),
            Block(
                "text",
                (120, 200, 700, 290),
                ["round and round and round", "and round and round and", "round and round"],
                answer=LOOP,
            ),
        ]
    ),
    Page([], hatched=(7, True), layout=""),
]
DOCUMENTS = {"fixture": FIXTURE, "failing": FAILING}


def write(folder: Path) -> None:
    """Write both documents and ``truth.json`` (document -> pages, each ``layout`` and ``blocks``) into a folder."""
    from reportlab.pdfgen.canvas import Canvas

    folder.mkdir(parents=True, exist_ok=True)
    truth: dict[str, list[dict[str, Any]]] = {}
    for name, pages in DOCUMENTS.items():
        canvas = Canvas(str(folder / f"{name}.pdf"), (WIDTH, HEIGHT), invariant=True)
        for page in pages:
            _draw_page(canvas, page)
            canvas.showPage()
        canvas.save()
        truth[name] = [{"layout": page.answer(), "blocks": [block.truth() for block in page.blocks]} for page in pages]
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def _draw_page(canvas: Any, page: Page) -> None:
    for block in page.blocks:
        canvas.saveState()
        left, top, right, bottom = block.box
        width, height = (right - left) * WIDTH / 1000, (bottom - top) * HEIGHT / 1000
        canvas.translate(left * WIDTH / 1000, HEIGHT - bottom * HEIGHT / 1000)
        if block.angle == 90:
            canvas.translate(0, height)
            canvas.rotate(-90)
        elif block.angle == 270:
            canvas.translate(width, 0)
            canvas.rotate(90)
        if block.angle in (90, 270):
            width, height = height, width
        draw = {"image": _draw_derrick, "table": _draw_table}.get(block.kind, _draw_lines)
        draw(canvas, block.lines, width, height, block.kind)
        canvas.restoreState()
    if page.hatched:
        lines, both = page.hatched
        canvas.setLineWidth(3)
        for i in range(lines):
            x, y = 60 + i * 380 / lines, 120 + i * 500 / lines
            canvas.line(x, 150, x + 100, 650)
            if both:
                canvas.line(60, y, 520, y + 60)


def _draw_lines(canvas: Any, lines: list[str], width: float, height: float, kind: str) -> None:
    font = "Helvetica-Bold" if kind == "title" else "Helvetica"
    leading = height / len(lines)
    size = min(0.75 * leading, *(0.98 * width / canvas.stringWidth(line, font, 1) for line in lines))
    canvas.setFont(font, size)
    for i, line in enumerate(lines):
        canvas.drawString(0, height - leading * i - leading / 2 - 0.35 * size, line)


def _draw_table(canvas: Any, rows: list[str], width: float, height: float, _kind: str) -> None:
    canvas.setFont("Helvetica", 12)
    step, column = height / len(rows), width / len(rows[0].split("|"))
    for i, row in enumerate(rows):
        bottom = height - step * (i + 1)
        cells = row.split("|")
        for c, cell in enumerate(cells):
            if cell != "<":
                span = 1 + len(list(takewhile("<".__eq__, cells[c + 1 :])))
                canvas.rect(c * column, bottom, span * column, step)
                canvas.drawString(c * column + 8, bottom + step / 2 - 4, cell)


def _draw_derrick(canvas: Any, _lines: list[str], width: float, height: float, _kind: str) -> None:
    canvas.setFillGray(0.85)
    canvas.rect(0, 0, width, height, fill=1)
    canvas.setFillGray(0.3)
    canvas.rect(width * 0.1, height * 0.1, width * 0.8, height * 0.06, fill=1)
    canvas.rect(width * 0.62, height * 0.3, width * 0.2, height * 0.15, fill=1)
    canvas.setLineWidth(5)
    canvas.line(width * 0.2, height * 0.15, width * 0.3, height * 0.9)
    canvas.line(width * 0.3, height * 0.9, width * 0.72, height * 0.8)
    canvas.setLineWidth(1.5)
    canvas.line(width * 0.72, height * 0.8, width * 0.72, height * 0.45)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
