"""The columns of every view, in their order, and by which a row is known (VIEW).

Reads: nothing.      Calls: nothing.      Never: says where a value comes from; `views.py` does.
Objects of the catalog are named by their names wherever a column ends in `_id`: a name is what
identifies them (OBJ-12).
"""

from typing import Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "conversation_endpoints": _words(
        "conversation_handle conversation_id is_initiator service_contract_id service_id "
        "conversation_group_id lifetime state state_desc far_service far_broker_instance "
        "principal_id far_principal_id outbound_session_key_identifier "
        "inbound_session_key_identifier security_timestamp dialog_timer send_sequence "
        "receive_sequence receive_sequence_frag last_send_tran_id end_dialog_sequence "
        "system_sequence first_out_of_order_sequence last_out_of_order_sequence "
        "last_out_of_order_frag is_system priority created_at last_activity_at state_since "
        "error_code error_text unread_count pending_send_count ack_status ack_pending_since"
    ),
    "conversation_groups": _words(
        "conversation_group_id service_id is_system locked_by_session locked_since "
        "ready_messages effective_priority rollback_streak retry_at parked_at park_reason"
    ),
    "transmission_queue": _words(
        "conversation_handle to_service_name to_broker_instance from_service_name "
        "service_contract_name enqueue_time message_sequence_number message_type_name "
        "is_conversation_error is_end_of_dialog message_body transmission_status priority "
        "status_key ssb_code status_since attempts last_attempt_at next_attempt_at "
        "effective_priority destination fragments_total fragments_acked"
    ),
    "service_queues": _words(
        "name max_readers activation_procedure execute_as_principal_id is_activation_enabled "
        "is_receive_enabled is_enqueue_enabled is_retention_enabled "
        "is_poison_message_handling_enabled status_reason status_changed_at status_changed_by "
        "culprit_conversation_id culprit_message_id last_error culprit_rollbacks "
        "ready_count parked_count retained_count incomplete_count oldest_ready_at rollback_streak "
        "monitor_absent_reason"
    ),
    "parked_groups": _words(
        "conversation_group_id queue state rollback_streak disconnects retry_at parked_at "
        "park_reason last_error messages culprit_conversation_id culprit_message_id"
    ),
    "queue_monitors": _words(
        "broker_id queue_id state last_empty_rowset_time last_activated_time tasks_waiting "
        "tasks_running necessary backoff_until consecutive_failures last_failure absent_reason "
        "broker_name"
    ),
    "activated_tasks": _words(
        "spid broker_id queue_id procedure_name execute_as started_at pid receives "
        "last_receive_at monitor_generation broker_name"
    ),
    "activation_decisions": _words(
        "broker_id queue_id number at decision text times last_at broker_name"
    ),
    "error_events": _words(
        "number at event subclass broker_name conversation_id conversation_handle "
        "conversation_group_id is_initiator service_name far_service service_contract_name "
        "code reason"
    ),
    "retained_messages": _words(
        "queuing_order queue status conversation_handle conversation_id conversation_group_id "
        "service_name service_contract_name message_sequence_number message_type_name priority "
        "enqueued_at message_id message_body is_archived"
    ),
    "services": _words("name service_id principal_id service_queue_id"),
    "service_contract_usages": _words("service_id service_contract_id"),
    "service_contracts": _words("name service_contract_id principal_id"),
    "service_contract_message_usages": _words(
        "service_contract_id message_type_id is_sent_by_initiator is_sent_by_target"
    ),
    "service_message_types": _words(
        "name message_type_id principal_id validation validation_desc schema_id"
    ),
    "conversation_priorities": _words(
        "priority_id name service_contract_id local_service_id remote_service_name priority"
    ),
    "event_notifications": _words(
        "name scope queue events service_name broker_instance fan_in conversation_handle "
        "dialog_state status last_sent_at failures last_error next_attempt_at undelivered lost"
    ),
    "brokers": _words(
        "name broker_id role epoch is_broker_enabled is_honor_broker_priority_on "
        "is_default_encryption_on disabled_reason "
        "start_failure next_start_attempt"
    ),
    "activation_counters": _words(
        "tasks_running tasks_started_total tasks_started_per_second tasks_aborted_total "
        "tasks_aborted_per_second procedures_invoked_total procedures_invoked_per_second "
        "task_limit_reached_total task_limit_reached_per_second "
        "notifications_total notifications_per_second"
    ),
    "periodic_tasks": _words(
        "task period last_start last_duration runs skips done_total last_error"
    ),
    "connections": _words(
        "connection_id transport_stream_id state state_desc connect_time login_time "
        "authentication_method principal_name remote_user_name last_activity_time is_accept "
        "login_state login_state_desc peer_certificate_id encryption_algorithm "
        "encryption_algorithm_desc receives_posted is_receive_flow_controlled sends_posted "
        "is_send_flow_controlled total_bytes_sent total_bytes_received total_fragments_sent "
        "total_fragments_received total_sends total_receives peer_arbitration_id peer_address "
        "destinations error"
    ),
    "destinations": _words(
        "address peer_instance state suppressed_until suppress_reason status_key status_since "
        "last_error last_error_at consecutive_failures pending_messages pending_fragments "
        "pending_bytes dialogs is_self connect_attempts connects losses failures_by_cause"
    ),
    "endpoint": _words(
        "name state port listener_address is_message_forwarding_enabled message_forwarding_size "
        "connection_auth certificate_id encryption encryption_algorithm drain is_listening "
        "listen_error forward_bytes_used"
    ),
    "transport_counters": _words(
        "open_connections current_bytes_for_send pending_fragments_for_send "
        "pending_bytes_for_send pending_fragments_for_receive fragment_sends_total "
        "fragment_receives_total fragment_p1_sends_total fragment_p2_sends_total "
        "fragment_p3_sends_total fragment_p4_sends_total fragment_p5_sends_total "
        "fragment_p6_sends_total fragment_p7_sends_total fragment_p8_sends_total "
        "fragment_p9_sends_total fragment_p10_sends_total send_ios_total receive_ios_total "
        "send_io_bytes_total receive_io_bytes_total boxcars_sent_total boxcars_received_total "
        "connect_attempts_total connects_total losses_total failures_by_cause "
        "suppressed_destinations arbitrations_lost_total corrupted_items_total "
        "refused_connections_total"
    ),
    "routes": _words(
        "name route_id principal_id remote_service_name broker_instance lifetime address "
        "mirror_address is_expired is_dynamic mirror_state current_principal"
    ),
    "instance_routes": _words(
        "name route_id principal_id remote_service_name broker_instance lifetime address "
        "mirror_address is_expired is_dynamic mirror_state current_principal"
    ),
    "forwarded_messages": _words(
        "conversation_id is_initiator to_service_name to_broker_instance from_service_name "
        "from_broker_instance adjacent_broker_address message_sequence_number "
        "message_fragment_number hops_remaining time_to_live time_consumed message_id arrived_at "
        "size_bytes"
    ),
    "forwarder_counters": _words(
        "is_forwarding limit_bytes used_bytes pending_messages pending_fragments next_hops "
        "forwarded_messages_total forwarded_bytes_total fragments_received_total "
        "fragments_sent_total notices_passed_total notices_dropped_total "
        "discarded_messages_total discarded_by_reason fragments_dropped"
    ),
    "broker_statistics": _words(
        "enqueued_messages_total enqueued_local_messages_total enqueued_transport_messages_total "
        "enqueued_transport_fragments_total transmission_messages_waiting "
        "dequeued_transmission_messages_total dropped_fragments_total dropped_by_reason "
        "stale_fragments_total out_of_order_fragments_total task_handlers task_restarts_total "
        "corrupted_items_total active_dialogs sends_total receives_total rollbacks_total "
        "activation_errors_total retransmitted_fragments_total duplicate_fragments_total "
        "delayed_dialogs reclassified_by_trigger resumed_for_resources_total "
        "clean_ups_resumed_total route_requests_by_outcome tick_overruns "
        "acks_sent_total acks_carried_total memory_full_at checks_total checks_unfit_total "
        "checks_overrun_by_cause checks_unavailable_total checks_waiting check_restarts_total "
        "check_failure"
    ),
    "transmission_statistics": _words(
        "transmission_objects transmission_objects_made_total changesets_total writes_total "
        "rows_written_total write_microseconds_total"
    ),
    "counters": _words(
        "sends receives rollbacks flushes changesets fragments_received fragments_stored "
        "fragments_duplicate fragments_buffered fragments_dropped retransmitted acks_sent "
        "acks_carried peak_memory"
    ),
}

KEYS: Final[dict[str, int]] = {
    "activation_decisions": 3,
    "forwarded_messages": 9,
    "queue_monitors": 2,
    "service_contract_usages": 2,
    "service_contract_message_usages": 2,
}
"""How many of the first columns tell rows apart, where it is not one."""
