"""Which of our formats and styles stands for which of vLLM's parsers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """How a model writes. Answers begin inside reasoning if its template says so."""

    tools: str = ""
    reasoning: str = ""
    thinks: bool | None = None  # by default; None where the style decides
    switches: tuple[str, ...] = ("enable_thinking", "thinking")  # of the template

    def start(self, template_kwargs: dict) -> str:
        """Where an answer begins, as the end of the rendered prompt would say."""
        thinks = self.thinks
        given = [template_kwargs[s] for s in self.switches if template_kwargs.get(s) is not None]
        if given:
            thinks = any(value not in (False, "disabled") for value in given)
        if template_kwargs.get("reasoning_effort") == "none":
            thinks = False
        return {None: "", True: "open", False: "closed"}[thinks]


# By the name of the parser in vLLM's registry of tool parsers or of reasoning
# parsers, or by that of its unified parser in lower case.
FAMILIES = {
    "deepseek_r1": Family(reasoning="deepseek_r1", thinks=True, switches=()),
    "deepseek_v3": Family("deepseek_v3", "deepseek_v3", False),
    "deepseek_v31": Family("deepseek_v31"),
    "deepseek_v32": Family("deepseek_v32", "deepseek_v3", None, ()),
    "deepseek_v4": Family("deepseek_v4", "deepseek_v4", True),
    "gemma4": Family("gemma4", "gemma4", None, ()),
    "functiongemma": Family("functiongemma"),
    "glm45": Family("glm45", "glm45", True),
    "glm47": Family("glm47", "glm45", True),
    "glm47moe": Family("glm47", "glm45", True),
    "granite": Family("granite", "granite", None, ()),
    "granite4": Family("granite4"),
    "granite_thinking_parser": Family("qwen3_coder", "granite_thinking_parser", True),
    "granitethinking": Family("qwen3_coder", "granite_thinking_parser", True),
    "hermes": Family("hermes"),
    "holo2": Family("hermes", "deepseek_v3", True),
    "hunyuan_a13b": Family("hunyuan_a13b", "hunyuan_a13b", None, ()),
    "kimi_k2": Family("kimi_k2", "kimi_k2", True),
    "kimik2": Family("kimi_k2", "kimi_k2", True),
    "llama3_json": Family("llama3_json"),
    "llama4_pythonic": Family("llama4_pythonic"),
    "minimax_m2": Family("minimax_m2", "minimax_m2", True, ()),
    "minimaxm2": Family("minimax_m2", "minimax_m2", True, ()),
    "mimo": Family("mimo", "mimo", True),
    "minimax_m3": Family("minimax_m3", "minimax_m3", None, ("thinking_mode",)),
    "minimaxm3": Family("minimax_m3", "minimax_m3", None, ("thinking_mode",)),
    "seed_oss": Family("seed_oss", "seed_oss", True, ()),
    "seedoss": Family("seed_oss", "seed_oss", True, ()),
    "step3p5": Family("step3p5", "step3p5", True, ()),
    "granite-20b-fc": Family("granite-20b-fc"),
    "deepseek_v41": Family("deepseek_v41", "deepseek_v41", True),
    "deepseekv41": Family("deepseek_v41", "deepseek_v41", True),
    "jamba": Family("jamba"),
    "longcat": Family("longcat"),
    "ernie45": Family("", "ernie45", True),
    "mistral": Family("mistral", "mistral", None, ()),
    "nemotron_v3": Family("qwen3_coder", "nemotron3", True),
    "nemotronv3": Family("qwen3_coder", "nemotron3", True),
    "olmo3": Family("olmo3", "olmo3", True, ()),
    "openai": Family("gpt_oss", "gpt_oss", None, ()),
    "openai_gptoss": Family("gpt_oss", "gpt_oss", None, ()),
    "phi4_mini_json": Family("phi4_mini_json"),
    "pythonic": Family("pythonic"),
    "qwen3": Family("qwen3_coder", "qwen3", True),
    "qwen3_coder": Family("qwen3_coder", "qwen3", True),
    "qwen3_json": Family("hermes"),
    "qwen3_xml": Family("qwen3_coder", "qwen3", True),
    "step3": Family("", "step3", True, ()),
    "deepseekv32": Family("deepseek_v32", "deepseek_v3", None, ()),
    "deepseekv4": Family("deepseek_v4", "deepseek_v4", True),
}

# The test files that are run, by family. Of tests/parser the files that hold a
# family's parser, not vLLM's engine.
TESTS = {
    "deepseek_v4": ["tests/tool_parsers/test_deepseekv4_tool_parser.py", "tests/parser/engine/test_deepseek_v4.py"],
    "qwen3": ["tests/reasoning/test_qwen3_reasoning_parser.py", "tests/parser/engine/test_qwen3_reasoning.py"],
    "qwen3_coder": ["tests/tool_parsers/test_qwen3coder_tool_parser.py", "tests/parser/engine/test_qwen3.py"],
    "kimi_k2": ["tests/tool_parsers/test_kimi_k2_tool_parser.py", "tests/reasoning/test_kimi_k2_reasoning_parser.py"],
    "glm45": [
        "tests/tool_parsers/test_glm4_moe_tool_parser.py",
        "tests/tool_parsers/test_glm47_moe_tool_parser.py",
        "tests/reasoning/test_glm4_moe_reasoning_parser.py",
        "tests/parser/engine/test_glm47_moe.py",
    ],
    "minimax_m2": [
        "tests/tool_parsers/test_minimax_m2_tool_parser.py",
        "tests/reasoning/test_minimax_m2_reasoning_parser.py",
        "tests/parser/engine/test_minimax_m2.py",
    ],
    "olmo3": ["tests/tool_parsers/test_olmo3_tool_parser.py", "tests/reasoning/test_olmo3_reasoning_parser.py"],
    "gemma4": [
        "tests/tool_parsers/test_gemma4_tool_parser.py",
        "tests/reasoning/test_gemma4_reasoning_parser.py",
        "tests/parser/engine/test_gemma4_streaming_reasoning.py",
    ],
    "deepseek_r1": ["tests/reasoning/test_deepseekr1_reasoning_parser.py"],
    "deepseek_v3": [
        "tests/tool_parsers/test_deepseekv3_tool_parser.py",
        "tests/tool_parsers/test_deepseekv31_tool_parser.py",
        "tests/reasoning/test_deepseekv3_reasoning_parser.py",
    ],
    "deepseek_v32": [
        "tests/tool_parsers/test_deepseekv32_tool_parser.py",
        "tests/parser/engine/test_deepseek_v32.py",
    ],
    "hermes": ["tests/tool_parsers/test_hermes_tool_parser.py", "tests/tool_parsers/test_granite4_tool_parser.py"],
    "llama": [
        "tests/tool_parsers/test_llama3_json_tool_parser.py",
        "tests/tool_parsers/test_llama4_pythonic_tool_parser.py",
        "tests/tool_parsers/test_pythonic_tool_parser.py",
    ],
    "granite": [
        "tests/tool_parsers/test_granite_tool_parser.py",
        "tests/reasoning/test_granite_reasoning_parser.py",
        "tests/parser/engine/test_granite.py",
        "tests/tool_parsers/test_granite_20b_fc_tool_parser.py",
        "tests/reasoning/test_granite_thinking_reasoning_parser.py",
    ],
    "functiongemma": ["tests/tool_parsers/test_functiongemma_tool_parser.py"],
    "phi4": ["tests/tool_parsers/test_phi4mini_tool_parser.py"],
    "nemotron_v3": [
        "tests/reasoning/test_nemotron_v3_reasoning_parser.py",
        "tests/parser/engine/test_nemotron_v3.py",
    ],
    "hunyuan": [
        "tests/reasoning/test_hunyuan_reasoning_parser.py",
        "tests/tool_parsers/test_hunyuan_a13b_tool_parser.py",
    ],
    "holo2": ["tests/reasoning/test_holo2_reasoning_parser.py"],
    "step3": ["tests/reasoning/test_step3_reasoning_parser.py"],
    "minimax_m3": [
        "tests/tool_parsers/test_minimax_m3_tool_parser.py",
        "tests/reasoning/test_minimax_m3_reasoning_parser.py",
        "tests/parser/engine/test_minimax_m3.py",
    ],
    "deepseek_v41": ["tests/parser/engine/test_deepseek_v41.py"],
    "seed_oss": ["tests/parser/engine/test_seed_oss.py"],
    "step3p5": [
        "tests/tool_parsers/test_step3p5_tool_parser.py",
        "tests/reasoning/test_step3p5_reasoning_parser.py",
        "tests/parser/engine/test_step3p5.py",
    ],
    "longcat": ["tests/tool_parsers/test_longcat_tool_parser.py"],
    "ernie45": ["tests/reasoning/test_ernie45_reasoning_parser.py"],
    "jamba": ["tests/tool_parsers/test_jamba_tool_parser.py"],
    "gpt_oss": ["tests/reasoning/test_gptoss_reasoning_parser.py"],
}

# The other test files, with the reason why they are not run.
NO_PARSER = "families that Penstock has no parser for"
INNER = "vLLM's own engine, templates and base classes, not a family"
FORCED = "vLLM's handling of forced calls and of other options of requests"
NOT_RUN = {
    NO_PARSER: [
        "tests/parser/cohere/",
        "tests/parser/engine/test_inkling.py",
        "tests/parser/engine/test_ling3.py",
        "tests/parser/engine/test_minicpmv_reasoning.py",
        "tests/parser/engine/test_plamo3.py",
        "tests/parser/test_beam_parser.py",
        "tests/reasoning/test_hy_v3_reasoning_parser.py",
        "tests/reasoning/test_k2_horizon_reasoning_parser.py",
        "tests/reasoning/test_kimi_k3_reasoning_parser.py",
        "tests/tool_parsers/test_apertus_tool_parser.py",
        "tests/tool_parsers/test_dots_tool_parser.py",
        "tests/tool_parsers/test_ernie45_moe_tool_parser.py",
        "tests/tool_parsers/test_gigachat3_tool_parser.py",
        "tests/tool_parsers/test_hy_v3_tool_parser.py",
        "tests/tool_parsers/test_internlm2_tool_parser.py",
        "tests/tool_parsers/test_k2_horizon_tool_parser.py",
        "tests/tool_parsers/test_kimi_k3_named_tool_choice.py",
        "tests/tool_parsers/test_lfm2_tool_parser.py",
        "tests/tool_parsers/test_minicpm5xml_tool_parser.py",
        "tests/tool_parsers/test_poolside_v1_tool_parser.py",
        "tests/tool_parsers/test_step3_tool_parser.py",
        "tests/tool_parsers/test_xlam_tool_parser.py",
    ],
    INNER: [
        "tests/parser/engine/test_delegating_replay.py",
        "tests/parser/engine/test_engine.py",
        "tests/parser/engine/test_parser_engine.py",
        "tests/parser/engine/test_replay.py",
        "tests/parser/engine/test_token_id_scanner.py",
        "tests/parser/engine/test_ufffd_reasoning_transition.py",
        "tests/parser/test_abstract_parser.py",
        "tests/parser/test_chat_parsing.py",
        "tests/parser/test_response_template.py",
        "tests/parser/test_response_template_grammar.py",
        "tests/reasoning/test_base_thinking_reasoning_parser.py",
        "tests/tool_parsers/test_structural_tag_registry.py",
        "tests/tool_parsers/test_utils.py",
    ],
    FORCED: [
        "tests/parser/test_include_reasoning.py",
        "tests/parser/test_parse.py",
        "tests/parser/test_streaming.py",
    ],
    "mistral_common and openai_harmony tokenize there, which are not installed": [
        "tests/parser/mistral/",
        "tests/parser/test_harmony.py",
    ],
    "the family keeps its reasoning in the content, which Penstock does not": [
        "tests/reasoning/test_minimax_m2_append_reasoning_parser.py",
    ],
}
