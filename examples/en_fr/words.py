"""Words for generated pairs: nouns and adjectives with the French forms that depend on gender and number.

The nouns for which "it" stands in the checks (checks.py), and in all but two probes (probes.tsv), are only counted.
"""

from dataclasses import dataclass

VOWELS = "aeiouyéèêâîôœh"  # no word here begins with an aspirated h, or with a y that is a consonant
IRREGULAR_PLURALS = {
    "knife": "knives",
    "sheep": "sheep",
    "mouse": "mice",
    "wolf": "wolves",
    "goose": "geese",
    "deer": "deer",
}
IRREGULAR_PLURALS |= {"calf": "calves", "scarf": "scarves", "tomato": "tomatoes", "mosquito": "mosquitoes"}


@dataclass(frozen=True)
class Noun:
    """A noun: English, French without an article, and its gender, m or f.

    >>> umbrella, school = Noun("umbrella", "parapluie", "m"), Noun("school", "école", "f")
    >>> umbrella.the, school.the, school.a, school.my, school.this
    ('le parapluie', "l'école", 'une école', 'mon école', 'cette école')
    """

    english: str
    french: str
    gender: str

    @property
    def is_feminine(self) -> bool:
        return self.gender == "f"

    @property
    def has_vowel(self) -> bool:
        """Whether articles lose their vowel before it."""
        return self.french[0] in VOWELS

    @property
    def the(self) -> str:
        return f"l'{self.french}" if self.has_vowel else f"{'la' if self.is_feminine else 'le'} {self.french}"

    @property
    def a(self) -> str:
        return f"{'une' if self.is_feminine else 'un'} {self.french}"

    @property
    def my(self) -> str:
        return f"{'ma' if self.is_feminine and not self.has_vowel else 'mon'} {self.french}"

    @property
    def this(self) -> str:
        word = "cette" if self.is_feminine else "cet" if self.has_vowel else "ce"
        return f"{word} {self.french}"

    @property
    def pronoun(self) -> str:
        return "elle" if self.is_feminine else "il"

    @property
    def ending(self) -> str:
        """What a participle that agrees with the noun ends in."""
        return "e" if self.is_feminine else ""


@dataclass(frozen=True)
class Adjective:
    """An adjective: English, French masculine and feminine.

    >>> old = Adjective("old", "vieux", "vieille")
    >>> old.of(Noun("tree", "arbre", "m")), old.of(Noun("villa", "villa", "f"), plural=True)
    ('vieux', 'vieilles')
    """

    english: str
    masculine: str
    feminine: str

    def of(self, noun: Noun, plural: bool = False) -> str:
        """The form that agrees with a noun."""
        form = self.feminine if noun.is_feminine else self.masculine
        return french_plural(form) if plural else form


def french_plural(word: str) -> str:
    """The plural of a French noun or adjective.

    >>> [french_plural(word) for word in ("bateau", "cheval", "prix", "clé")]
    ['bateaux', 'chevaux', 'prix', 'clés']
    """
    if word[-1] in "sxz":
        return word
    return word + "x" if word.endswith("eau") else word[:-1] + "ux" if word.endswith("al") else word + "s"


def english_plural(word: str) -> str:
    """The plural of an English noun.

    >>> [english_plural(word) for word in ("box", "knife", "key", "cherry")]
    ['boxes', 'knives', 'keys', 'cherries']
    """
    if word in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[word]
    if word[-1] == "y" and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")


def capital(text: str) -> str:
    """The text with a capital first letter.

    >>> capital("l'ours")
    "L'ours"
    """
    return text[:1].upper() + text[1:]


def read_nouns(text: str) -> list[Noun]:
    """Nouns from a list such as `dog chien m, cow vache f`."""
    return [Noun(*entry.split()) for entry in text.split(",")]


def read_adjectives(text: str) -> list[Adjective]:
    """Adjectives from a list such as `tired fatigué fatiguée, weak faible faible`."""
    return [Adjective(*entry.split()) for entry in text.split(",")]


ANIMALS = read_nouns("""
    dog chien m, horse cheval m, cow vache f, cat chat m, duck canard m, rabbit lapin m, goat chèvre f, sheep mouton m,
    lion lion m, donkey âne m, fox renard m, bear ours m, turtle tortue f, mouse souris f, elephant éléphant m,
    wolf loup m, frog grenouille f, bee abeille f, giraffe girafe f, hen poule f, lamb agneau m, monkey singe m,
    snake serpent m, squirrel écureuil m, pig cochon m, tiger tigre m, camel chameau m, deer cerf m, rat rat m,
    whale baleine f, shark requin m, dolphin dauphin m, seal phoque m, penguin pingouin m, spider araignée f,
    ant fourmi f, fly mouche f, mosquito moustique m, wasp guêpe f, crab crabe m, zebra zèbre m, kangaroo kangourou m,
    puppy chiot m, kitten chaton m, bull taureau m, calf veau m, mare jument f, pony poney m, rooster coq m,
    turkey dinde f, ostrich autruche f, lizard lézard m, crocodile crocodile m, snail escargot m, otter loutre f,
    beaver castor m, gorilla gorille m, lioness lionne f, creature créature f, beast bête f
""")
PEOPLE = read_nouns("""
    boy garçon m, girl fille f, man homme m, woman femme f, teacher professeur m, king roi m, queen reine f,
    soldier soldat m, farmer fermier m, nurse infirmière f, student étudiant m, baker boulanger m, driver chauffeur m,
    lawyer avocat m, thief voleur m, waiter serveur m, waitress serveuse f, artist artiste m, cook cuisinier m
""")
BIRDS = read_nouns("""
    crow corbeau m, eagle aigle m, swan cygne m, swallow hirondelle f, pigeon pigeon m, seagull mouette f, goose oie f,
    stork cigogne f, dove colombe f, sparrow moineau m, butterfly papillon m, duck canard m, bee abeille f
""")
TIRED = read_adjectives("""
    tired fatigué fatiguée, weak faible faible, sick malade malade, nervous nerveux nerveuse, young jeune jeune,
    slow lent lente, afraid effrayé effrayée, hurt blessé blessée, scared apeuré apeurée
""")
PLACES = read_nouns("""
    river rivière f, road route f, field champ m, forest forêt f, lake lac m, square place f, garden jardin m,
    path chemin m, valley vallée f, desert désert m, park parc m, tunnel tunnel m, island île f,
    mountain montagne f, beach plage f, village village m, hill colline f, meadow prairie f, avenue avenue f,
    stream ruisseau m, farm ferme f, border frontière f, courtyard cour f, corridor couloir m, room pièce f
""")
WIDE = read_adjectives("""
    wide large large, long long longue, dangerous dangereux dangereuse, narrow étroit étroite, dark sombre sombre,
    big grand grande
""")
THINGS = read_nouns("""
    villa villa f, truck camion m, computer ordinateur m, phone téléphone m, lamp lampe f, chair chaise f,
    shirt chemise f, jacket veste f, coat manteau m, watch montre f, piano piano m, guitar guitare f, boat bateau m,
    bag sac m, mirror miroir m, letter lettre f, pen stylo m, bottle bouteille f, knife couteau m, dress robe f,
    hat chapeau m, box boîte f, key clé f, cup tasse f, glass verre m, bed lit m, painting tableau m,
    umbrella parapluie m, machine machine f, radio radio f, spoon cuillère f, fork fourchette f, toy jouet m,
    ring bague f, map carte f, newspaper journal m, pencil crayon m,
    carpet tapis m, curtain rideau m, door porte f, roof toit m, wall mur m, desk bureau m, candle bougie f,
    pillow oreiller m, blanket couverture f, towel serviette f, brush brosse f, needle aiguille f, button bouton m,
    belt ceinture f, tie cravate f, scarf écharpe f, skirt jupe f, shoe chaussure f, boot botte f, glove gant m,
    suitcase valise f, drum tambour m, violin violon m, flute flûte f, novel roman m, magazine magazine m,
    poster affiche f, photo photo f, picture image f, notebook cahier m, dictionary dictionnaire m, stamp timbre m,
    envelope enveloppe f, hammer marteau m, shovel pelle f, rope corde f, bucket seau m, basket panier m,
    plane avion m, motorcycle moto f, tractor tracteur m, tent tente f, apartment appartement m, castle château m,
    factory usine f, shop magasin m, restaurant restaurant m, engine moteur m, screen écran m, keyboard clavier m,
    printer imprimante f, bowl bol m, tray plateau m, statue statue f, necklace collier m, crown couronne f,
    sword épée f, gun pistolet m, balloon ballon m, doll poupée f, sofa canapé m
""")
QUALITIES = read_adjectives("""
    expensive cher chère, heavy lourd lourde, old vieux vieille, small petit petite, big grand grande, dirty sale sale,
    ugly laid laide, short court courte, beautiful beau belle, new neuf neuve, broken cassé cassée, light léger légère,
    wet mouillé mouillée, useless inutile inutile
""")
FOODS = read_nouns("""
    meat viande f, fish poisson m, cake gâteau m, salad salade f, bread pain m, cheese fromage m, pizza pizza f,
    sauce sauce f, rice riz m, chicken poulet m, egg œuf m, tart tarte f, orange orange f, pear poire f,
    melon melon m, banana banane f, ham jambon m, sausage saucisse f, butter beurre m, omelette omelette f,
    pancake crêpe f, cookie biscuit m, peach pêche f, strawberry fraise f, cherry cerise f, lemon citron m,
    tomato tomate f, carrot carotte f, onion oignon m, mushroom champignon m, sandwich sandwich m,
    chocolate chocolat m, dessert dessert m, meal repas m, honey miel m, jam confiture f
""")
TASTES = read_adjectives("""
    hot chaud chaude, cold froid froide, salty salé salée, sweet sucré sucrée, bitter amer amère, old vieux vieille,
    rotten pourri pourrie, raw cru crue, dry sec sèche
""")
RELATIVES = read_nouns("""
    son fils m, daughter fille f, uncle oncle m, aunt tante f, cousin cousin m, wife femme f, husband mari m,
    grandmother grand-mère f, grandfather grand-père m, friend ami m
""")
COUNTED = read_nouns("""
    book livre m, apple pomme f, chair chaise f, dog chien m, car voiture f, student étudiant m, letter lettre f,
    egg œuf m, day jour m, house maison f, bottle bouteille f, ticket billet m
""")
