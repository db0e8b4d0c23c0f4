"""Which warmer carries out which kind of item: a new kind is one file and one line here."""

from warmup_tasks.items import ItemKind
from warmup_tasks.warming.adapters import warm_adapters
from warmup_tasks.warming.embeddings import warm_embeddings
from warmup_tasks.warming.kv_prefixes import warm_prefixes
from warmup_tasks.warming.qa_pairs import warm_qa_pairs
from warmup_tasks.warming.responses import warm_responses
from warmup_tasks.warming.work import Warmer

WARMERS: dict[ItemKind, Warmer] = {
    ItemKind.EMBEDDING: warm_embeddings,
    ItemKind.ADAPTER: warm_adapters,
    ItemKind.RESPONSE: warm_responses,
    ItemKind.QA_PAIR: warm_qa_pairs,
    ItemKind.KV_PREFIX: warm_prefixes,
}
