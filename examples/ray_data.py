"""Ask a fleet about every row of a dataset, with Ray Data: `python ray_data.py URL QUESTIONS.jsonl FOLDER`.

A row is {"question": "..."}; FOLDER gets JSON Lines with an "answer" in each. Needs
`pip install 'ray[data]' aiohttp`, and RAY_ADDRESS for a cluster that runs already.
"""

import sys

import ray
from ray.data.llm import HttpRequestProcessorConfig, build_processor


def to_request(row: dict) -> dict:
    messages = [{"role": "user", "content": row["question"]}]
    return {"payload": {"messages": messages, "max_tokens": 64, "temperature": 0}, **row}


def to_answer(row: dict) -> dict:
    answer = row["http_response"]["choices"][0]["message"]["content"]
    return {"question": row["question"], "answer": answer}


url, questions, folder = sys.argv[1:]
config = HttpRequestProcessorConfig(url=f"{url}/v1/chat/completions", concurrency=1, batch_size=16)
ask = build_processor(config, preprocess=to_request, postprocess=to_answer)
ask(ray.data.read_json(questions)).write_json(folder)
