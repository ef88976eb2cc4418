"""What `make test` runs with the real thing: for each feature a test or two, in the order of its table.

`python -m tests.features FOLDER` prints the tests of a folder, for the command line of pytest. All others of
`model/`, `system/` and `browser/` run in `make test-all`. A new feature needs a row (`tests/meta`).
"""

from __future__ import annotations

import sys

# Rows of "Features compared" in docs/start/coming_from.md.
_COMPARED: dict[str, str] = {
    "model files": """
        model/test_model_file.py
        model/test_vocab.py
        system/test_transcode.py::test_a_server_tells_what_it_has_loaded
        system/test_model_downloads.py::test_a_model_is_downloaded_used_and_deleted
    """,
    "llama-server's API and flags": """
        model/test_engine.py::test_greedy_text_is_what_libllama_alone_gives
        model/test_sampler.py::test_narrows_as_defined
        model/test_sampler.py::test_draws_are_distributed_as_the_probabilities
        system/test_api_examples.py::test_example
        system/test_llama_server_shapes.py
        system/test_options_live.py::test_a_sampling_flag_is_what_the_field_is
    """,
    "OpenAI chat, tools, embeddings": """
        system/test_openai.py::test_chat_and_stream_say_the_same
        system/test_openai.py::test_a_tool_loop_of_two_turns
        system/test_openai.py::test_errors_are_openais
        system/test_embedding.py::test_the_openai_client_gets_vectors_of_anything_it_can_send
    """,
    "several models at one address": """
        system/test_many_models.py::test_models_are_loaded_on_request_and_the_least_recently_used_makes_room
        system/test_many_models.py::test_every_api_names_its_model
    """,
    "a crash of native code": """
        model/test_engine.py::test_resuming_after_any_token_continues_the_same
        system/test_replay.py::test_streams_go_on_token_exact
        browser/test_resilience.py::test_an_engine_that_is_killed_is_not_even_noticed
    """,
    "same seed, same answer under load": """
        model/test_engine.py::test_whatever_arrives_whenever_is_answered_as_if_alone
        model/test_seeded_draws.py
        system/test_clients.py::test_the_answer_does_not_depend_on_what_runs_beside_it
    """,
    "fair shares between API keys": """
        system/test_tenants.py::test_a_second_tenant_learns_nothing_from_the_prompt_cache
        system/test_tenants.py::test_slots_are_shared_by_weight_and_not_by_who_asks_more_often
    """,
    "schema keyword its grammar cannot enforce": """
        model/test_constraint.py
        system/test_unmet_schema.py
    """,
}

# Pages of `docs/howto`. Their marked examples run too, all of them: `test_guide`.
_GUIDES: dict[str, str] = {
    "batches": """
        system/test_batches.py::test_a_batch_of_every_endpoint
        system/test_batches.py::test_the_command_runs_a_file
    """,
    "chat": """
        system/test_api_examples.py::test_guide
        system/test_chat.py::test_a_models_own_template_for_tools_is_used_with_tools
    """,
    "chats": """
        browser/test_chat_list.py::test_chats_on_the_server_are_seen_by_other_browsers
    """,
    "choose_model": """
        model/test_transcode.py::test_q8_0_that_stands_in_for_other_types_is_ours_too
        system/test_transcode.py::test_tune_prints_a_table_that_a_server_then_uses
    """,
    "cluster": """
        system/test_cluster_tls.py
    """,  # Ray itself needs to be installed: `make cluster-test`
    "coding_agents": """
        system/test_anthropic.py::test_message_and_stream_say_the_same
        system/test_anthropic.py::test_tools_are_called_with_what_their_schema_says
        system/test_openai_responses.py::test_whole_and_streamed_answers_agree
        system/test_openai_responses.py::test_a_schema_and_a_call_are_followed
    """,
    "context": """
        model/test_engine.py::test_context_shift_forgets_exactly_what_it_should
        model/test_self_extend.py::test_greedy_text_is_what_libllama_alone_gives
        system/test_context_options.py::test_positions_metadata_and_control_vectors
    """,
    "convert": """
        system/test_transcode.py::test_a_server_tells_what_it_has_loaded
        system/test_lora.py::test_a_wrong_file_ends_the_start_with_a_reason
    """,
    "deterministic": """
        model/test_seeded_draws.py
        system/test_clients.py::test_the_answer_does_not_depend_on_what_runs_beside_it
    """,
    "docker": """
        system/test_deploy.py
    """,
    "durable": """
        system/test_durable.py::test_streams_continue_after_everything_is_killed
    """,
    "embeddings": """
        model/test_encoder.py::test_bert_gives_the_vectors_of_the_reference
        model/test_encoder.py::test_bert_gives_the_scores_of_the_reference
        system/test_embedding.py::test_shell_rerank
        system/test_embedding.py::test_shell_classify_a_text
    """,
    "evaluate": """
        system/test_openai.py::test_the_loglikelihood_of_a_text
    """,
    "frameworks": """
        system/test_openai.py::test_a_stream_helper_of_the_package_accumulates
        system/test_openai.py::test_models
        system/test_openai.py::test_parse_gives_an_object_of_the_class
        system/test_openai.py::test_three_answers_share_the_prompt
    """,
    "gpu": """
        system/test_hardware.py::test_devices_are_listed
        system/test_hardware.py::test_options_for_gpus_do_no_harm
    """,
    "infill": """
        model/test_infill.py
        system/test_infill.py::test_the_answer_is_that_of_a_prompt_built_by_hand
    """,
    "keep_conversation": """
        system/test_openai.py::test_chat_and_stream_say_the_same
    """,
    "kubernetes": """
        meta/test_deploy_files.py
    """,
    "load_test": """
        system/test_clients.py::test_more_requests_than_slots_are_all_answered
    """,
    "many_models": """
        browser/test_model_choice.py::test_a_model_is_chosen_loaded_and_asked
        system/test_many_models.py::test_load_and_unload_leave_nothing_behind
    """,
    "many_users": """
        system/test_clients.py::test_more_requests_than_slots_are_all_answered
        system/test_clients.py::test_a_client_that_leaves_a_stream_frees_the_slot
    """,
    "mcp": """
        browser/test_tools.py::test_a_call_runs_when_it_is_allowed
        system/test_mcp.py::test_calls
        system/test_mcp_responses.py::test_a_call_runs_and_the_model_goes_on
    """,
    "media": """
        browser/test_pictures.py::test_a_picture_is_seen_and_sent
        model/test_vision.py::test_the_rows_of_pictures_are_those_of_the_reference
        model/test_vision.py::test_an_answer_is_that_of_libmtmd
        system/test_transcription.py::test_the_openai_client_transcribes
        system/test_vision.py::test_the_openai_package_shows_images
        system/test_vision.py::test_sounds_are_heard
    """,
    "memory": """
        model/test_memory_plan.py::test_the_plan_is_what_is_taken
    """,
    "monitoring": """
        browser/test_monitor.py::test_lanes_show_what_requests_did
        browser/test_monitor.py::test_what_the_server_uses_of_its_machine_is_shown_with_peaks
        system/test_prometheus.py::test_values_are_what_happened
        system/test_tracing.py::test_a_completion_is_one_trace
    """,
    "ollama": """
        system/test_ollama.py::test_chat_and_stream_say_the_same
        system/test_ollama.py::test_a_tool_and_its_result
    """,
    "operate": """
        system/test_deploy.py
        system/test_life.py::test_a_running_request_is_finished_before_the_end
        system/test_life.py::test_a_stopped_engine_is_told_before_it_is_given_up
        system/test_sleep.py::test_it_sleeps_without_its_process_and_looking_does_not_wake_it
    """,
    "performance": """
        model/test_speculation.py::test_all_kinds_of_requests_get_the_same_tokens
        model/test_memory_plan.py::test_the_plan_is_what_is_taken
        system/test_speculation.py::test_a_draft_model_changes_no_answer
    """,
    "proxy": """
        system/test_listen.py::test_a_unix_socket_from_start_to_end
        system/test_tls.py::test_a_client_that_trusts_the_certificate
        system/test_transcription.py::test_paths_are_under_the_prefix
    """,
    "responses": """
        system/test_openai_responses.py::test_a_response_in_the_background_can_be_left_followed_and_cancelled
    """,
    "several_engines": """
        system/test_fleet.py::test_twelve_answers_do_not_change_when_engines_are_lost
        system/test_fleet.py::test_prompts_go_where_their_beginning_is
    """,
    "shared_storage": """
        system/test_shared_storage.py::test_what_one_stores_the_other_has_at_once
        system/test_shared_storage.py::test_work_continues_when_its_server_is_killed
    """,
    "state": """
        model/test_checkpoints.py::test_a_second_turn_evaluates_only_what_is_new
        model/test_conversation.py::test_a_restored_conversation_goes_on_as_if_nothing_happened
        model/test_state.py::test_a_state_continues_in_any_sequence_of_any_context
        system/test_state.py::test_shell_sessions
        system/test_state.py::test_the_default_model_goes_on_after_a_restart
    """,
    "steer": """
        model/test_lora.py::test_an_adapter_is_worth_its_merged_weights
        system/test_lora.py::test_a_chat_has_the_adapters_it_asks_for
        system/test_lora.py::test_an_adapter_comes_and_goes_while_streams_run
        model/test_guidance.py::test_tokens_are_those_of_two_contexts_put_together
        system/test_guidance.py::test_a_request_is_guided_and_the_next_one_is_not
        system/test_system_prompt.py::test_a_chat_behind_it
    """,
    "structured": """
        system/test_structured.py::test_layouts
        system/test_openai.py::test_answers_in_every_shape_of_response_format
    """,
    "team_server": """
        system/test_deploy.py
        system/test_tenants.py::test_slots_are_shared_by_weight_and_not_by_who_asks_more_often
    """,
    "tools": """
        model/test_formats.py::test_what_models_write_is_accepted
        system/test_openai.py::test_a_named_function_is_called_with_arguments_of_its_schema
    """,
    "troubleshooting": """
        system/test_hardware.py::test_the_doctor
        system/test_log.py::test_a_file_gets_the_same_as_stderr
        system/test_life.py::test_a_broken_model_ends_with_a_message
    """,
    "upgrade": """
        system/test_life.py::test_a_running_request_is_finished_before_the_end
    """,
    "web": """
        browser/test_chat.py
        browser/test_completion_js.py::test_a_generator_of_chunks_that_returns_the_text
        browser/test_files.py::test_texts_are_shown_counted_and_sent_first
        browser/test_files.py::test_the_text_of_a_pdf
        browser/test_find.py::test_one_goes_from_hit_to_hit_and_into_the_next_chat
        browser/test_find.py::test_several_chats_are_deleted_at_once_and_come_back
        browser/test_look.py::test_the_first_load_is_small_and_from_this_server
        browser/test_look.py::test_all_of_it_with_the_keyboard
        browser/test_markdown.py::test_nothing_hostile_runs
        browser/test_settings.py::test_defaults_are_the_servers
        browser/test_stores.py::test_save_list_load_remove
        system/test_readme.py
    """,
}

FEATURES = {name: tests.split() for name, tests in (_COMPARED | _GUIDES).items()}


def tests_of(folder: str) -> list[str]:
    return sorted({test for tests in FEATURES.values() for test in tests if test.startswith(f"{folder}/")})


if __name__ == "__main__":
    sys.stdout.write(" ".join(f"tests/{test}" for test in tests_of(sys.argv[1])))
