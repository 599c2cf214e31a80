"""Normalisation: written text as it is spoken, each word with its place in the raw text."""

from __future__ import annotations

import itertools
import re
import unicodedata
from pathlib import Path

import num2words
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megahour.corpus.generate.sentences import sentences
from megahour.corpus.text.languages.lookup import MONEY, NAMES, NUMBERS, fold, reads_numbers, tongue
from megahour.corpus.text.normalise import normalise

LONG = "three seven zero three one eight zero four eight two"


@pytest.mark.parametrize(
    ("raw", "spoken"),
    [
        ("On May 3rd, 25 people paid $40.", "on may third twenty five people paid forty dollars"),
        ("At 3:05, 10:30 or 9 p.m.", "at three oh five ten thirty or nine p m"),
        ("She was born on May 3, 1985.", "she was born on may third nineteen eighty five"),
        ("In 2004 it cost $3.25.", "in two thousand four it cost three dollars and twenty five cents"),
        ("4.5% of $1,200", "four point five percent of one thousand two hundred dollars"),
        ("$1, £0.50 and $5 million", "one dollar fifty pence and five million dollars"),
        ("₹1,50,000 or 50¢", "one hundred fifty thousand rupees or fifty cents"),
        ("Mr. Smith’s on Park St. by St. Mary", "mister smith's on park street by saint mary"),
        ("Call 555-1234.", "call five five five one two three four"),
        ("(555) 010-4567", "five five five zero one zero four five six seven"),
        ("it's 3703180482 right", f"it's {LONG} right"),
        ("370318048", "three hundred seventy million three hundred eighteen thousand forty eight"),
        ("111111111111111", "one " * 14 + "one"),
        ("order 1200000001", "order one two zero zero zero zero zero zero zero one"),
        ("id AB-3703180482, B3703180482X", f"id ab {LONG} b {LONG} x"),
        ("No.3703180482-3703180482 or 1-3703180482", f"number {LONG} {LONG} or one {LONG}"),
        ("1000000001 km or 1000000001€", "one billion one kilometers or one billion one euros"),
        ("3.3703180482 and 1000000001.5", f"three point {LONG} and one billion one point five"),
        ("12000000000 or $1000000001", "twelve billion or one billion one dollars"),
        ("1234567 people", "one million two hundred thirty four thousand five hundred sixty seven people"),
        ("the 1990s, the 80s and 1905", "the nineteen nineties the eighties and nineteen oh five"),
        ("½ of it, 3/4, 1-2-3, 007", "one half of it three quarters one two three zero zero seven"),
        ("-5 °C, Q&A, U.S.A., No. 7", "minus five degrees celsius q and a u s a number seven"),
        ("B2B mp3s don't—can't", "b two b mp three s don't can't"),
        ("1234567890123456", "one two three four five six seven eight nine zero one two three four five six"),
        ("Song #5 – then press #.", "song number five then press pound"),
        ("…!?", ""),
    ],
)  # fmt: skip
def test_english(raw: str, spoken: str) -> None:
    assert normalise(raw).text == spoken


@pytest.mark.parametrize(
    ("language", "raw", "spoken"),
    [
        ("es", "El 5 % de 1.000 y 21€", "el cinco por ciento de mil y veintiún euros"),
        ("fr", "L’an 21, le 1er, 3,50 €", "l'an vingt et un le premier trois euros cinquante"),
        ("it", "21 case, 100", "ventuno case cento"),
        ("ru", "25% и 2$, 1-й", "двадцать пять процентов и два доллара первый"),
        ("de-AT", "1.234 Straßen", "eintausendzweihundertvierunddreissig strassen"),
        ("xx", "42 foo", "42 foo"),
        ("hi", "हिन्दी भाषा", "हिन्दी भाषा"),
        ("ar", "مرحبا بالعالم", "مرحبا بالعالم"),
        ("zh", "你好", "你好"),
    ],
)
def test_other_languages(language: str, raw: str, spoken: str) -> None:
    assert normalise(raw, language).text == spoken


def test_each_word_knows_where_it_came_from() -> None:
    raw = "On May 3rd, 25 people"
    found = normalise(raw)
    assert [raw[a:b] for a, b in zip(found.offsets, found.ends, strict=True)] == [
        "On",
        "May",
        "3rd",
        "25",
        "25",
        "people",
    ]


def test_generated_sentences_are_read_as_they_are_spoken() -> None:
    for sentence in itertools.islice(sentences("train", 7), 1500):
        # The generator's alphabet is a to z; words with accents are its concern.
        if sentence.raw.isascii():
            assert normalise(sentence.raw).text == sentence.spoken, sentence.raw


@example("Ie", "en")
@example("DR", "en")
@given(st.text(max_size=60), st.sampled_from(["en", "de", "ru", "xx"]))
@settings(max_examples=120)
def test_offsets_are_monotone_and_inside_whatever_the_text(raw: str, language: str) -> None:
    found = normalise(raw, language)
    assert found.offsets == sorted(found.offsets)
    for token, start, end in zip(found.tokens, found.offsets, found.ends, strict=True):
        assert 0 <= start < end <= len(raw)
        assert token
        assert not re.search(r"\s", token)
        # A letter-only source is passed through: the token is that slice, folded. Only titles are spoken otherwise.
        if raw[start:end].isalpha() and fold(raw[start:end]).isalpha():
            assert token == fold(raw[start:end]) or raw[start:end].lower() in ("mr", "mrs", "ms", "dr", "prof")


@given(st.lists(st.from_regex(r"[^\W\d_]{1,8}('[^\W\d_]{1,3})?", fullmatch=True), max_size=6))
@settings(max_examples=80)
def test_plain_words_of_any_script_pass_through_in_order(words: list[str]) -> None:
    plain = [word for word in words if word == unicodedata.normalize("NFKC", word) and word.replace("'", "").isalpha()]
    plain = [word for word in plain if fold(word).replace("'", "").isalpha() and "ʼ" not in word]
    assert normalise(" ".join(plain), "xx").tokens == [fold(word) for word in plain]


@given(st.integers(0, 10**14))
def test_any_integer_is_read_in_words(n: int) -> None:
    assert re.fullmatch(r"[a-z]+( [a-z]+)*", normalise(f"x {n:,}").text)


@pytest.mark.parametrize(
    ("language", "raw", "spoken"),
    [
        (
            "pt",
            "Custa 1.250,5 reais, 21% mais.",
            "custa mil duzentos e cinquenta vírgula cinco reais vinte e um por cento mais",
        ),
        ("nl", "Het is -3 graden, 10 % nat.", "het is min drie graden tien procent nat"),
        ("pl", "Wynik: 2,25 i 100%", "wynik dwa przecinek dwa pięć i sto procent"),
        ("tr", "%12 ve 1.250,5 TL", "yüzde on iki ve bin iki yüz elli virgül beş lira"),
        ("ar", "عدد ٢١ و 1.5", "عدد واحد و عشرون و واحد فاصلة خمسة"),
        ("ja", "21個と1.5％", "二十一 個と 一 点 五 パーセント"),
        ("ko", "2,000 명 5%", "이천 명 오 퍼센트"),
        ("sv", "2 250,5 & 3", "tvåtusen tvåhundrafemtio komma fem och tre"),
        ("vi", "21 & 5%", "hai mươi mốt và năm phần trăm"),
        ("id", "21,5", "dua puluh satu koma lima"),
        ("ar", "١٢٫٥", "اثنا عشر فاصلة خمسة"),
        ("fa", "۱٬۰۰۰٫۵", "هزار ممیز پنج"),
        ("fa", "12%", "دوازده درصد"),
        ("uk", "21 кіт", "двадцять один кіт"),
        ("bn", "১৯৯৫ সালে", "এক হাজার নয়শত পঁচানব্বই সালে"),
        ("te", "25", "ఇరవై అయిదు"),
        ("th", "พ.ศ. 2538", "พ ศ สองพันห้าร้อยสามสิบแปด"),
        ("hi", "२१ और 1.5", "२१ और 1.5"),
        ("zh", "21个", "21 个"),
    ],
)
def test_numbers_of_more_languages(language: str, raw: str, spoken: str) -> None:
    """Languages with a table read decimals and signs, num2words' others whole numbers; elsewhere digits stay digits."""
    assert normalise(raw, language).text == spoken


@pytest.mark.parametrize(
    ("language", "raw", "spoken"),
    [
        ("nl", "€ 5,50 voor de 3e, 10-12 km", "vijf euro vijftig voor de derde tien tot twaalf kilometer"),
        ("nl", "-$2 of 5%", "min twee dollar of vijf procent"),
        ("sv", "5 USD, 21 °C och 2:a", "fem dollar tjugoett grader celsius och andra"),
        ("da", "2 €, 80 km/h", "to euro firs kilometer i timen"),
        ("no", "£3", "tre pund"),
        ("pt", "1 € e 2 €, 3,50 $ o 2º", "um euro e dois euros três dólares e cinquenta centavos o segundo"),
        ("pt", "R$ 5, 100 m", "cinco reais cem metros"),
        ("fi", "1 € 2 € 1,5 km", "yksi euro kaksi euroa yksi pilkku viisi kilometriä"),
        ("tr", "5 TL 15 km", "beş lira on beş kilometre"),
        ("id", "Rp 5.000", "lima ribu rupiah"),
        ("vi", "5 km", "năm ki lô mét"),
        ("ko", "$5 3kg", "오 달러 삼 킬로그램"),
        ("ja", "$5 3km", "五 ドル 三 キロメートル"),
        ("pl", "1 zł 2 zł 5 zł 12 zł 22 zł 1,5 zł", "jeden złoty dwa złote pięć złotych dwanaście złotych "
         "dwadzieścia dwa złote jeden przecinek pięć złotego"),
        ("pl", "5 € 10–12 km", "pięć euro dziesięć do dwanaście kilometrów"),
        ("ro", "$5 5 km", "cinci cinci km"),
    ],
)  # fmt: skip
def test_money_units_and_ordinals_of_more_languages(language: str, raw: str, spoken: str) -> None:
    assert normalise(raw, language).text == spoken


def test_the_page_names_the_languages_that_are_there() -> None:
    page = (Path(__file__).parents[3] / "docs/corpus.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (.*?) \| `(.*?)`", page, re.MULTILINE))
    others = {code.partition("_")[0].replace("kz", "kk") for code in num2words.CONVERTER_CLASSES}
    whole_numbers = sorted(code for code in others - {*NAMES, *NUMBERS} if reads_numbers(code))
    assert rows["everything is read aloud"].split() == sorted(NAMES)
    assert rows["numbers with decimals, minus and percent"].split() == sorted(NUMBERS)
    assert rows["these, money and units"].split() == sorted(MONEY)
    assert all(bool(tongue(code).currencies) == (code in MONEY) == bool(tongue(code).units) for code in NUMBERS)
    assert rows["whole numbers"].split() == whole_numbers
    assert all(tongue(code).minus for code in NUMBERS)


@pytest.mark.parametrize(
    ("language", "raw", "spoken"),
    [
        ("tr", "İSTANBUL IŞIK İzmir’in I\u0307", "istanbul ışık izmir'in i"),
        ("az", "QIZ", "qız"),
        ("en", "İstanbul Hel\u200dlo wo\u200crld\u2060s", "istanbul hello worlds"),
        ("fa", "می\u200cخواهم", "می\u200cخواهم"),
        ("hi", "क्\u200dष", "क्\u200dष"),
        ("he", "\u200fשלום\u200f \u202bא\u202c", "שלום א"),
        ("en", "fam 👨\u200d👩\u200d👧 x\0y", "fam x y"),
    ],
)
def test_what_cannot_be_seen_and_capitals_of_i(language: str, raw: str, spoken: str) -> None:
    found = normalise(raw, language)
    assert found.text == spoken
    assert all(raw[a:b].strip() for a, b in zip(found.offsets, found.ends, strict=True))


@pytest.mark.parametrize(
    ("language", "n", "said"),
    [
        ("it", 3, "tre"),
        ("it", 123, "centoventitré"),
        ("it", 1918, "millenovecentodiciotto"),
        ("it", 33_000, "trentatremila"),
        ("tr", 0, "sıfır"),
        ("tr", 1000, "bin"),
        ("tr", 101_039, "yüz bir bin otuz dokuz"),
        ("tr", 1_001_111, "bir milyon bin yüz on bir"),
        ("tr", 999 * 10**12 + 2, "dokuz yüz doksan dokuz trilyon iki"),
    ],
)
def test_numbers_that_num2words_spells_wrongly(language: str, n: int, said: str) -> None:
    assert normalise(str(n), language).text == said


def test_italian_ordinals_that_num2words_spells_wrongly() -> None:
    assert normalise("118º 1000000º 23ª", "it").text == "centodiciottesimo milionesimo ventitreesima"
