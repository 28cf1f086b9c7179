"""Print all numbers from 1 to 3,999 with their Roman numerals, as training pairs: source, tab, target.

python examples/roman_numerals.py > pairs.tsv
"""

VALUES = {"M": 1000, "CM": 900, "D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40, "X": 10, "IX": 9}
VALUES |= {"V": 5, "IV": 4, "I": 1}


def to_roman(number: int) -> str:
    """Return a number as a Roman numeral."""
    numeral = ""
    for symbol, value in VALUES.items():
        count, number = divmod(number, value)
        numeral += symbol * count
    return numeral


print("source", "target", sep="\t")
for number in range(1, 4000):
    print(number, to_roman(number), sep="\t")
