"""Make the sample corpus and truth.json, the text that tests expect to find in it.

Usage: python scripts/make_corpus.py tests/resources/corpus
The words are in source.txt there. The same library and font versions give the same bytes again.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import sys
from collections.abc import Callable
from ctypes import byref, c_double, c_float
from functools import partial
from pathlib import Path
from typing import Any

import pypdf.generic as objects
import pypdfium2 as pdfium
import pypdfium2.raw as raw
import reportlab.platypus as rl
from PIL import Image, ImageFilter
from pypdf import PdfReader, PdfWriter
from reportlab import rl_config
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4, A5
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.utils import ImageReader
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

SOURCE = Path(__file__).parents[1] / "tests/resources/corpus/source.txt"
DEJAVU = "/usr/share/fonts/truetype/dejavu/DejaVu"
FONTS = {  # name: (file, Debian package)
    "Serif": (f"{DEJAVU}SerifCondensed.ttf", "fonts-dejavu-extra"),
    "Serif-Bold": (f"{DEJAVU}SerifCondensed-Bold.ttf", "fonts-dejavu-extra"),
    "Serif-Italic": (f"{DEJAVU}SerifCondensed-Italic.ttf", "fonts-dejavu-extra"),
    "Sans": (f"{DEJAVU}Sans.ttf", "fonts-dejavu-core"),
    "Sans-Bold": (f"{DEJAVU}Sans-Bold.ttf", "fonts-dejavu-core"),
    "Coded": (f"{DEJAVU}Serif.ttf", "fonts-dejavu-core"),
    "Chinese": ("/usr/share/fonts/truetype/wqy/wqy-microhei.ttc", "fonts-wqy-microhei"),
}
BOLD = {"Serif": "Serif-Bold", "Sans": "Sans-Bold", "Times-Roman": "Times-Bold"}
WIDTH, HEIGHT = A4
Page = list[tuple[str, str]]  # blocks: (mark, text)
Story = list[rl.Flowable]


def read_source() -> dict[str, list[Page]]:
    """The pages of each document; see the top of source.txt for the marks."""

    def block(text: str) -> tuple[str, str]:
        mark, _, rest = text.strip().partition(" ")
        if not re.fullmatch(r"#+|[>^~|*]|!\w+|\d\.", mark):
            mark, rest = "", text.strip()
        if mark not in ("|", "!drawing"):  # elsewhere a line end counts only after a backslash
            rest = re.sub(r"(?<!\\)\n", " ", rest).replace("\\\n", "\n")
        return mark, rest

    _, *chunks = re.split(r"^=== ", SOURCE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        name: [[block(b) for b in page.strip().split("\n\n")] for page in body.split("\n---\n")]
        for name, _, body in (chunk.partition("\n") for chunk in chunks)
    }


TEXT = read_source()
BANK = [text.replace("¬", "\u00ad") for _, text in TEXT["filler"][0]]
SLOTS = {text.split(": ")[0]: text.split(": ")[1].split(", ") for _, text in TEXT["slots"][0]}


class Flow:
    """Turns blocks into reportlab flowables, in one typeface."""

    def __init__(self, face: str, size: float = 11, seed: int = 0, **body: Any) -> None:
        bold = BOLD.get(face, face)
        self.rng = random.Random(seed)

        def look(name: str, font: str, scale: float, **more: Any) -> ParagraphStyle:
            more = {"leading": size * scale * 1.4, "wordWrap": "CJK" * (face == "Chinese")} | more
            return ParagraphStyle(name, fontName=font, fontSize=size * scale, **more)

        self.looks = {
            "": look("body", face, 1, **({"spaceAfter": 8} | body)),
            "1.": look("item", face, 1, leftIndent=18, bulletFontName=face, spaceAfter=3),
            "^": look("caption", face, 0.9, alignment=1, spaceBefore=8, spaceAfter=6),
            "*": look("note", face, 0.8),
            "#": look("title", bold, 1.65, spaceAfter=10, alignment="alignment" in body),
            "##": look("chapter", bold, 1.25, keepWithNext=1, spaceBefore=9, spaceAfter=5),
            "###": look("section", bold, 1.08, keepWithNext=1, spaceBefore=7, spaceAfter=3),
        }

    def pages(self, *pages: Page) -> Story:
        blocks = [block for page in pages for block in [*page, ("!end", "")]]
        return [part for mark, text in blocks for part in self.block(mark, text)]

    def block(self, mark: str, text: str) -> Story:
        if mark == "|":
            return [table(text, self.looks[""].fontName), rl.Spacer(0, 16)]
        if mark.startswith("!"):
            return [DRAWN[mark](text)]
        if mark == "~":
            text = " ".join(self.rng.sample(BANK, int(text)))
            text = re.sub(r"\{(\w+)\}", lambda slot: self.rng.choice(SLOTS[slot[1]]), text)
        bullet = mark if mark.endswith(".") else None
        look = self.looks.get("1." if bullet else mark, self.looks[""])
        return [rl.Paragraph(text.replace("\n", "<br/>"), look, bulletText=bullet)]


def table(text: str, font: str) -> rl.Table:
    """A table of the kind named on the first line: ruled, plain or shaded."""
    kind, *lines = text.split("\n")
    rows = [line.split(" | ") for line in lines]
    look: list[Any] = [
        ("FONT", (0, 0), (-1, -1), font, 9.5), ("FONT", (0, 0), (-1, 0), BOLD.get(font, font), 9.5),
        ("ALIGN", (1, 0), (-1, -1), "CENTER"), ("VALIGN", (0, 0), (-1, -1), "MIDDLE"),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 6),
    ]  # fmt: skip
    if kind == "ruled":
        look.append(("GRID", (0, 0), (-1, -1), 0.6, colors.black))
    if kind == "shaded":
        look.append(("ROWBACKGROUNDS", (0, 0), (-1, -1), [colors.lavender, colors.white]))
    for r, row in enumerate(rows):
        for c, cell in enumerate(row):
            if cell in ("<", "^"):
                row[c] = ""
                look.append(("SPAN", (c - (cell == "<"), r - (cell == "^")), (c, r)))
    return rl.Table(rows, [f"{96 / len(rows[0])}%"] * len(rows[0]), style=look)


class Drawing(rl.Flowable):
    """A label, then lines of x, y, size and text; /5,9 for text is a line going that far."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.label, *self.pieces = text.split("\n")

    def wrap(self, width: float, _height: float) -> tuple[float, float]:
        self.width = width
        return width, 60 if self.label else 150

    def draw(self) -> None:
        self.canv.translate(self.width / 2 - 113, 26 if self.label else 0)
        for piece in [*self.pieces, f"{self.width / 2 + 95:.0f} 0 11 {self.label}"]:
            *numbers, text = piece.split(" ", 3)
            x, y, size = map(int, numbers)
            if text[:1] == "/":
                dx, dy = text[1:].split(",")
                self.canv.line(x, y, x + int(dx), y + int(dy))
            else:
                self.canv.setFont("Serif-Italic" if text[:1].isalpha() else "Serif", size)
                self.canv.drawString(x, y, text)


DRAWN: dict[str, Callable[[str], Any]] = {
    "!drawing": Drawing,
    "!end": lambda _text: rl.PageBreak(),
    "!column": lambda _text: rl.FrameBreak(),
    "!rule": lambda text: rl.HRFlowable(int(text), 0.5, color=colors.black, hAlign="LEFT"),
    "!space": lambda text: rl.Spacer(0, int(text)),
    "!picture": lambda _text: rl.Spacer(0, 0),  # truth.json is to have the text of this page
}


box = partial(rl.Frame, leftPadding=0, bottomPadding=0, rightPadding=0, topPadding=0)
lock = partial(StandardEncryption, ownerPassword="quarry-owner", canCopy=0, strength=128)


def running(canvas: Canvas, doc: Any, font: str, odd: str, even: str) -> None:
    """Draws a page number and, but for the first page, a header."""
    canvas.setFont(font, 9)
    canvas.drawCentredString(doc.pagesize[0] / 2, 30, str(doc.page))
    header = (even, odd)[doc.page % 2] if doc.page > 1 else ""
    canvas.drawCentredString(doc.pagesize[0] / 2, doc.pagesize[1] - 36, header)


def build(story: Story, *templates: rl.PageTemplate, **options: Any) -> bytes:
    result = io.BytesIO()
    doc = rl.BaseDocTemplate(result, author="PDF Quarry", **({"pagesize": A4} | options))
    doc.addPageTemplates([*templates, rl.PageTemplate("tall", box(64, 60, WIDTH - 128, 720))])
    doc.build(story)
    return result.getvalue()


def make_plain(path: Path, name: str, face: str, keep: float = 1, **options: Any) -> None:
    """One column of text; keep < 1 cuts the file off before its page tree and trailer."""
    pdf = build(Flow(face, seed=len(name)).pages(*TEXT[name]), **options)
    path.write_bytes(pdf[: int(len(pdf) * keep)])


def make_two_column(path: Path, _name: str) -> None:
    flow = Flow("Serif", 10, 1, alignment=4, firstLineIndent=12, spaceAfter=0)
    width, right = WIDTH / 2 - 64, WIDTH / 2 + 10
    top = [box(54, 656, WIDTH - 108, 136), box(54, 52, width, 36)]  # the title and the footnote
    top += [box(54, 96, width, 552), box(right, 58, width, 590)]
    columns = [box(x, 58, width, 726) for x in (54, right)]
    heads = {"odd": "Bed Thickness by Kernel Smoothing", "even": "Stonebridge Working Group"}
    decorate = partial(running, font="Serif", **heads)
    first = rl.PageTemplate("first", top, onPageEnd=decorate)
    later = rl.PageTemplate("later", columns, onPageEnd=decorate)
    story = [rl.NextPageTemplate("later"), *flow.pages(*TEXT["papers/two-column.pdf"])]
    path.write_bytes(build(story, first, later, title="Bed Thickness"))


def make_book(path: Path, name: str) -> None:
    flow = Flow("Times-Roman", 11, 4, alignment=4, firstLineIndent=14, spaceAfter=0)
    heads = {"odd": "A Short Book of Quarrying", "even": "Stonebridge Press"}
    frame, decorate = box(50, 50, 320, 495), partial(running, font="Times-Italic", **heads)
    template = rl.PageTemplate("book", frame, onPageEnd=decorate)
    path.write_bytes(build(flow.pages(*TEXT[name]), template, pagesize=A5, title="Quarrying"))


def scan(pdf: bytes, seed: int, angle: float = 0.35, dpi: int = 150) -> bytes:
    """A PDF of page 0 of another as a flatbed scanner gives it: grey, askew, noisy, JPEG."""
    page = pdfium.PdfDocument(pdf)[0].render(scale=dpi / 72, grayscale=True)
    image = page.to_pil().convert("L")
    image = image.rotate(angle, Image.Resampling.BICUBIC, fillcolor=255)
    noise = random.Random(seed).randbytes(image.width * image.height)
    grain = Image.frombytes("L", image.size, noise).filter(ImageFilter.GaussianBlur(1.2))
    jpeg, result = io.BytesIO(), io.BytesIO()
    image = Image.blend(image.filter(ImageFilter.GaussianBlur(0.5)), grain, 0.1)
    image.save(jpeg, "JPEG", quality=48, dpi=(dpi, dpi))
    canvas = Canvas(result, A4)
    canvas.drawImage(ImageReader(jpeg), 0, 0, WIDTH, HEIGHT)
    canvas.save()
    return result.getvalue()


def make_scan(path: Path, name: str, face: str) -> None:
    path.write_bytes(scan(build(Flow(face, 12, spaceAfter=12).pages(*TEXT[name])), len(name)))


def make_mixed(path: Path, name: str) -> None:
    one, two, three = map(Flow("Serif", 12, 6).pages, TEXT[name])
    columns = rl.PageTemplate("columns", [box(x, 64, 222, HEIGHT - 128) for x in (60, 313)])
    writer = PdfWriter()
    for pdf in (build(one), scan(build(two, columns), 7, -0.3), build(three)):
        writer.append(io.BytesIO(pdf))
    writer.write(path)


def make_hidden_layer(path: Path, name: str) -> None:
    """The text of the source page lies over its scan in render mode 3 (invisible)."""
    source = build(Flow("Serif", 12).pages(*TEXT[name]))
    writer = PdfWriter(io.BytesIO(scan(source, 8, 0)))
    layer: Any = PdfReader(io.BytesIO(source)).pages[0]
    layer[objects.NameObject("/Contents")] = stream(b"3 Tr\n" + layer.get_contents().get_data())
    writer.pages[0].merge_page(layer)
    writer.write(path)


def stream(data: bytes) -> objects.DecodedStreamObject:
    result = objects.DecodedStreamObject()
    result.set_data(data)
    return result


def make_no_unicode_map(path: Path, name: str) -> None:
    """Each font becomes a composite one (Identity-H) without /ToUnicode."""
    writer = PdfWriter(io.BytesIO(build(Flow("Coded", 12).pages(*TEXT[name]))))
    page: Any = writer.pages[0]
    fonts = page["/Resources"]["/Font"]
    for key, font in fonts.items():
        if font.get_object()["/Subtype"] == "/TrueType":
            fonts[key] = composite(writer, font.get_object())
    content = objects.ContentStream(page.get_contents(), writer)
    for operands, operator in content.operations:
        if operator == b"Tj":
            codes = operands[0].original_bytes
            operands[0] = objects.ByteStringObject(b"".join(bytes((0, code)) for code in codes))
    page[objects.NameObject("/Contents")] = content
    clean = PdfWriter()  # a copy of the page leaves the old fonts behind
    clean.add_page(page)
    clean.write(path)


def composite(writer: Any, simple: Any) -> objects.PdfObject | None:
    """A Type 0 font with the glyphs of a reportlab TrueType subset and no way back to Unicode."""
    data = simple["/FontDescriptor"]["/FontFile2"].get_data()
    entry = data.index(b"cmap") + 8
    cmap = int.from_bytes(data[entry : entry + 4], "big") + 12  # a format 6 table from code 0
    glyphs = writer._add_object(stream(data[cmap + 10 : cmap + 10 + 2 * len(simple["/Widths"])]))
    widths = " ".join(str(width) for width in simple["/Widths"])
    head = f"/Type /Font /BaseFont {simple['/BaseFont']}"
    descriptor = simple.raw_get("/FontDescriptor").idnum
    font = f"""<< {head} /Subtype /Type0 /Encoding /Identity-H /DescendantFonts [
        << {head} /Subtype /CIDFontType2 /FontDescriptor {descriptor} 0 R
        /CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >>
        /CIDToGIDMap {glyphs.idnum} 0 R /W [0 [{widths}]] >> ] >>"""
    return objects.read_object(io.BytesIO(font.encode()), writer)


def make_rotated(path: Path, name: str) -> None:
    """A landscape table page stored as a portrait one with /Rotate 90, then a normal page."""

    frame = box(80, 60, HEIGHT - 160, WIDTH - 130)
    wide = rl.PageTemplate("wide", frame, pagesize=(HEIGHT, WIDTH))
    wide.onPage = lambda canvas, _doc: canvas.transform(0, 1, -1, 0, WIDTH, 0)  # a quarter turn
    wide.rotation = 90
    story = [rl.NextPageTemplate("tall"), *Flow("Sans", 11, 10).pages(*TEXT[name])]
    path.write_bytes(build(story, wide))


def make_outlined(path: Path, name: str) -> None:
    """Every character of a source page becomes a filled path, as in a drawing program."""
    text = pdfium.PdfDocument(build(Flow("Serif", 12).pages(*TEXT[name])))[0].get_textpage()
    canvas, x, y = Canvas(str(path), A4), c_double(), c_double()
    for index in range(text.count_chars()):
        code = raw.FPDFText_GetUnicode(text, index)
        if not chr(code).isspace():
            raw.FPDFText_GetCharOrigin(text, index, byref(x), byref(y))
            font = raw.FPDFTextObj_GetFont(raw.FPDFText_GetTextObject(text, index))
            size = raw.FPDFText_GetFontSize(text, index)
            draw_glyph(canvas, raw.FPDFFont_GetGlyphPath(font, code, 1), x.value, y.value, size)
    canvas.save()


def draw_glyph(canvas: Canvas, glyph: Any, x: float, y: float, size: float) -> None:
    path, points, dx, dy = canvas.beginPath(), [], c_float(), c_float()
    draw = (path.lineTo, path.curveTo, path.moveTo)  # in the order of FPDF_SEGMENT_...
    for i in range(raw.FPDFGlyphPath_CountGlyphSegments(glyph)):
        segment = raw.FPDFGlyphPath_GetGlyphPathSegment(glyph, i)
        raw.FPDFPathSegment_GetPoint(segment, byref(dx), byref(dy))
        points += [x + size * dx.value, y + size * dy.value]
        kind = raw.FPDFPathSegment_GetType(segment)
        if len(points) == (6 if kind == raw.FPDF_SEGMENT_BEZIERTO else 2):
            draw[kind](*points)
            points = []
    canvas.drawPath(path, stroke=0, fill=1, fillMode=1)


MAKERS: dict[str, Callable[[Path, str], object]] = {
    "papers/two-column.pdf": make_two_column,
    "papers/formulas.pdf": partial(make_plain, face="Serif"),
    "reports/tables.pdf": partial(make_plain, face="Sans"),
    "reports/book.pdf": make_book,
    "scans/letter.pdf": partial(make_scan, face="Serif"),
    "scans/mixed.pdf": make_mixed,
    "scans/hidden-layer.pdf": make_hidden_layer,
    "languages/chinese.pdf": partial(make_plain, face="Chinese"),
    "languages/chinese-scan.pdf": partial(make_scan, face="Chinese"),
    "languages/no-unicode-map.pdf": make_no_unicode_map,
    "odd/rotated.pdf": make_rotated,
    "odd/encrypted.pdf": partial(make_plain, face="Serif", encrypt=lock("quarry")),
    "odd/owner-password.pdf": partial(make_plain, face="Serif", encrypt=lock("")),
    "odd/corrupt.pdf": partial(make_plain, face="Serif", keep=1 / 3),
    "odd/empty.pdf": lambda path, name: path.write_text(TEXT[name][0][0][1]),
    "odd/outlined.pdf": make_outlined,
    "odd/Copy of two-column.PDF": make_two_column,
    "odd/not-a-pdf.pdf": lambda path, name: path.write_text(TEXT[name][0][0][1]),
}
UNREADABLE = [f"odd/{stem}.pdf" for stem in ("encrypted", "corrupt", "empty", "not-a-pdf")]


def truth(folder: Path) -> dict[str, dict[str, Any]]:
    """For each readable document its number of pages, headings, and some paragraphs or a page."""
    result: dict[str, dict[str, Any]] = {}
    for name, pages in TEXT.items():
        if name in MAKERS and name not in UNREADABLE:
            blocks = [block for page in pages for block in page]
            result[name] = {
                "pages": len(pdfium.PdfDocument(folder / name)),
                "headings": [text for mark, text in blocks if mark.startswith("#")],
                "sentences": [text for mark, text in blocks if mark == ">"],
            }
            for index, page in enumerate(pages):
                if page[0] == ("!picture", ""):
                    result[name][str(index)] = "\n\n".join(t for m, t in page if m[:1] != "!")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the sample corpus and truth.json.")
    parser.add_argument("out_folder", type=Path, help="folder for the PDFs; made if missing")
    parser.add_argument("--truth", type=Path, help="default: truth.json beside OUT_FOLDER")
    arguments = parser.parse_args()
    rl_config.invariant, rl_config.useA85 = 1, 0
    for name, (file, package) in FONTS.items():
        if not Path(file).exists():
            sys.exit(f"make_corpus: {file} is missing; install the Debian package {package}")
        # The codes of "Coded" follow first use, so that without a map they mean nothing.
        pdfmetrics.registerFont(TTFont(name, file, asciiReadable=name != "Coded"))
    pdfmetrics.registerFontFamily("Serif", "Serif", "Serif-Bold", "Serif-Italic", "Serif-Bold")
    for name, make in MAKERS.items():
        path = arguments.out_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path, name)
    words = json.dumps(truth(arguments.out_folder), ensure_ascii=False, indent=1) + "\n"
    target = arguments.truth or arguments.out_folder.resolve().parent / "truth.json"
    target.write_text(words, encoding="utf-8")


if __name__ == "__main__":
    main()
