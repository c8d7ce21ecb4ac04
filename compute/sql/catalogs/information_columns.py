"""The columns of information_schema, as PostgreSQL 15 has them: ``name:type`` in their order.

The types are written short; `relations.TYPES` says what they are.
"""

from __future__ import annotations

from typing import Final

INFORMATION_SCHEMA: Final[dict[str, str]] = {
    "administrable_role_authorizations": "grantee:n role_name:n is_grantable:w",
    "applicable_roles": "grantee:n role_name:n is_grantable:w",
    "attributes": (
        "udt_catalog:n udt_schema:n udt_name:n attribute_name:n ordinal_position:4 "
        "attribute_default:v is_nullable:w data_type:v character_maximum_length:4 "
        "character_octet_length:4 character_set_catalog:n character_set_schema:n "
        "character_set_name:n collation_catalog:n collation_schema:n collation_name:n "
        "numeric_precision:4 numeric_precision_radix:4 numeric_scale:4 datetime_precision:4 "
        "interval_type:v interval_precision:4 attribute_udt_catalog:n attribute_udt_schema:n "
        "attribute_udt_name:n scope_catalog:n scope_schema:n scope_name:n maximum_cardinality:4 "
        "dtd_identifier:n is_derived_reference_attribute:w"
    ),
    "character_sets": (
        "character_set_catalog:n character_set_schema:n character_set_name:n "
        "character_repertoire:n form_of_use:n default_collate_catalog:n default_collate_schema:n "
        "default_collate_name:n"
    ),
    "check_constraint_routine_usage": (
        "constraint_catalog:n constraint_schema:n constraint_name:n specific_catalog:n "
        "specific_schema:n specific_name:n"
    ),
    "check_constraints": (
        "constraint_catalog:n constraint_schema:n constraint_name:n check_clause:v"
    ),
    "collation_character_set_applicability": (
        "collation_catalog:n collation_schema:n collation_name:n character_set_catalog:n "
        "character_set_schema:n character_set_name:n"
    ),
    "collations": "collation_catalog:n collation_schema:n collation_name:n pad_attribute:v",
    "column_column_usage": (
        "table_catalog:n table_schema:n table_name:n column_name:n dependent_column:n"
    ),
    "column_domain_usage": (
        "domain_catalog:n domain_schema:n domain_name:n table_catalog:n table_schema:n "
        "table_name:n column_name:n"
    ),
    "column_options": (
        "table_catalog:n table_schema:n table_name:n column_name:n option_name:n option_value:v"
    ),
    "column_privileges": (
        "grantor:n grantee:n table_catalog:n table_schema:n table_name:n column_name:n "
        "privilege_type:v is_grantable:w"
    ),
    "column_udt_usage": (
        "udt_catalog:n udt_schema:n udt_name:n table_catalog:n table_schema:n table_name:n "
        "column_name:n"
    ),
    "columns": (
        "table_catalog:n table_schema:n table_name:n column_name:n ordinal_position:4 "
        "column_default:v is_nullable:w data_type:v character_maximum_length:4 "
        "character_octet_length:4 numeric_precision:4 numeric_precision_radix:4 numeric_scale:4 "
        "datetime_precision:4 interval_type:v interval_precision:4 character_set_catalog:n "
        "character_set_schema:n character_set_name:n collation_catalog:n collation_schema:n "
        "collation_name:n domain_catalog:n domain_schema:n domain_name:n udt_catalog:n "
        "udt_schema:n udt_name:n scope_catalog:n scope_schema:n scope_name:n "
        "maximum_cardinality:4 dtd_identifier:n is_self_referencing:w is_identity:w "
        "identity_generation:v identity_start:v identity_increment:v identity_maximum:v "
        "identity_minimum:v identity_cycle:w is_generated:v generation_expression:v "
        "is_updatable:w"
    ),
    "constraint_column_usage": (
        "table_catalog:n table_schema:n table_name:n column_name:n constraint_catalog:n "
        "constraint_schema:n constraint_name:n"
    ),
    "constraint_table_usage": (
        "table_catalog:n table_schema:n table_name:n constraint_catalog:n constraint_schema:n "
        "constraint_name:n"
    ),
    "data_type_privileges": (
        "object_catalog:n object_schema:n object_name:n object_type:v dtd_identifier:n"
    ),
    "domain_constraints": (
        "constraint_catalog:n constraint_schema:n constraint_name:n domain_catalog:n "
        "domain_schema:n domain_name:n is_deferrable:w initially_deferred:w"
    ),
    "domain_udt_usage": (
        "udt_catalog:n udt_schema:n udt_name:n domain_catalog:n domain_schema:n domain_name:n"
    ),
    "domains": (
        "domain_catalog:n domain_schema:n domain_name:n data_type:v character_maximum_length:4 "
        "character_octet_length:4 character_set_catalog:n character_set_schema:n "
        "character_set_name:n collation_catalog:n collation_schema:n collation_name:n "
        "numeric_precision:4 numeric_precision_radix:4 numeric_scale:4 datetime_precision:4 "
        "interval_type:v interval_precision:4 domain_default:v udt_catalog:n udt_schema:n "
        "udt_name:n scope_catalog:n scope_schema:n scope_name:n maximum_cardinality:4 "
        "dtd_identifier:n"
    ),
    "element_types": (
        "object_catalog:n object_schema:n object_name:n object_type:v "
        "collection_type_identifier:n data_type:v character_maximum_length:4 "
        "character_octet_length:4 character_set_catalog:n character_set_schema:n "
        "character_set_name:n collation_catalog:n collation_schema:n collation_name:n "
        "numeric_precision:4 numeric_precision_radix:4 numeric_scale:4 datetime_precision:4 "
        "interval_type:v interval_precision:4 domain_default:v udt_catalog:n udt_schema:n "
        "udt_name:n scope_catalog:n scope_schema:n scope_name:n maximum_cardinality:4 "
        "dtd_identifier:n"
    ),
    "enabled_roles": "role_name:n",
    "foreign_data_wrapper_options": (
        "foreign_data_wrapper_catalog:n foreign_data_wrapper_name:n option_name:n option_value:v"
    ),
    "foreign_data_wrappers": (
        "foreign_data_wrapper_catalog:n foreign_data_wrapper_name:n authorization_identifier:n "
        "library_name:v foreign_data_wrapper_language:v"
    ),
    "foreign_server_options": (
        "foreign_server_catalog:n foreign_server_name:n option_name:n option_value:v"
    ),
    "foreign_servers": (
        "foreign_server_catalog:n foreign_server_name:n foreign_data_wrapper_catalog:n "
        "foreign_data_wrapper_name:n foreign_server_type:v foreign_server_version:v "
        "authorization_identifier:n"
    ),
    "foreign_table_options": (
        "foreign_table_catalog:n foreign_table_schema:n foreign_table_name:n option_name:n "
        "option_value:v"
    ),
    "foreign_tables": (
        "foreign_table_catalog:n foreign_table_schema:n foreign_table_name:n "
        "foreign_server_catalog:n foreign_server_name:n"
    ),
    "information_schema_catalog_name": "catalog_name:n",
    "key_column_usage": (
        "constraint_catalog:n constraint_schema:n constraint_name:n table_catalog:n "
        "table_schema:n table_name:n column_name:n ordinal_position:4 "
        "position_in_unique_constraint:4"
    ),
    "parameters": (
        "specific_catalog:n specific_schema:n specific_name:n ordinal_position:4 parameter_mode:v "
        "is_result:w as_locator:w parameter_name:n data_type:v character_maximum_length:4 "
        "character_octet_length:4 character_set_catalog:n character_set_schema:n "
        "character_set_name:n collation_catalog:n collation_schema:n collation_name:n "
        "numeric_precision:4 numeric_precision_radix:4 numeric_scale:4 datetime_precision:4 "
        "interval_type:v interval_precision:4 udt_catalog:n udt_schema:n udt_name:n "
        "scope_catalog:n scope_schema:n scope_name:n maximum_cardinality:4 dtd_identifier:n "
        "parameter_default:v"
    ),
    "referential_constraints": (
        "constraint_catalog:n constraint_schema:n constraint_name:n unique_constraint_catalog:n "
        "unique_constraint_schema:n unique_constraint_name:n match_option:v update_rule:v "
        "delete_rule:v"
    ),
    "role_column_grants": (
        "grantor:n grantee:n table_catalog:n table_schema:n table_name:n column_name:n "
        "privilege_type:v is_grantable:w"
    ),
    "role_routine_grants": (
        "grantor:n grantee:n specific_catalog:n specific_schema:n specific_name:n "
        "routine_catalog:n routine_schema:n routine_name:n privilege_type:v is_grantable:w"
    ),
    "role_table_grants": (
        "grantor:n grantee:n table_catalog:n table_schema:n table_name:n privilege_type:v "
        "is_grantable:w with_hierarchy:w"
    ),
    "role_udt_grants": (
        "grantor:n grantee:n udt_catalog:n udt_schema:n udt_name:n privilege_type:v is_grantable:w"
    ),
    "role_usage_grants": (
        "grantor:n grantee:n object_catalog:n object_schema:n object_name:n object_type:v "
        "privilege_type:v is_grantable:w"
    ),
    "routines": (
        "specific_catalog:n specific_schema:n specific_name:n routine_catalog:n routine_schema:n "
        "routine_name:n routine_type:v module_catalog:n module_schema:n module_name:n "
        "udt_catalog:n udt_schema:n udt_name:n data_type:v character_maximum_length:4 "
        "character_octet_length:4 character_set_catalog:n character_set_schema:n "
        "character_set_name:n collation_catalog:n collation_schema:n collation_name:n "
        "numeric_precision:4 numeric_precision_radix:4 numeric_scale:4 datetime_precision:4 "
        "interval_type:v interval_precision:4 type_udt_catalog:n type_udt_schema:n "
        "type_udt_name:n scope_catalog:n scope_schema:n scope_name:n maximum_cardinality:4 "
        "dtd_identifier:n routine_body:v routine_definition:v external_name:v external_language:v "
        "parameter_style:v is_deterministic:w sql_data_access:v is_null_call:w sql_path:v "
        "schema_level_routine:w max_dynamic_result_sets:4 is_user_defined_cast:w "
        "is_implicitly_invocable:w security_type:v to_sql_specific_catalog:n "
        "to_sql_specific_schema:n to_sql_specific_name:n as_locator:w created:z last_altered:z "
        "new_savepoint_level:w is_udt_dependent:w result_cast_from_data_type:v "
        "result_cast_as_locator:w result_cast_char_max_length:4 result_cast_char_octet_length:4 "
        "result_cast_char_set_catalog:n result_cast_char_set_schema:n result_cast_char_set_name:n "
        "result_cast_collation_catalog:n result_cast_collation_schema:n "
        "result_cast_collation_name:n result_cast_numeric_precision:4 "
        "result_cast_numeric_precision_radix:4 result_cast_numeric_scale:4 "
        "result_cast_datetime_precision:4 result_cast_interval_type:v "
        "result_cast_interval_precision:4 result_cast_type_udt_catalog:n "
        "result_cast_type_udt_schema:n result_cast_type_udt_name:n result_cast_scope_catalog:n "
        "result_cast_scope_schema:n result_cast_scope_name:n result_cast_maximum_cardinality:4 "
        "result_cast_dtd_identifier:n"
    ),
    "schemata": (
        "catalog_name:n schema_name:n schema_owner:n default_character_set_catalog:n "
        "default_character_set_schema:n default_character_set_name:n sql_path:v"
    ),
    "sequences": (
        "sequence_catalog:n sequence_schema:n sequence_name:n data_type:v numeric_precision:4 "
        "numeric_precision_radix:4 numeric_scale:4 start_value:v minimum_value:v maximum_value:v "
        "increment:v cycle_option:w"
    ),
    "table_constraints": (
        "constraint_catalog:n constraint_schema:n constraint_name:n table_catalog:n "
        "table_schema:n table_name:n constraint_type:v is_deferrable:w initially_deferred:w "
        "enforced:w nulls_distinct:w"
    ),
    "table_privileges": (
        "grantor:n grantee:n table_catalog:n table_schema:n table_name:n privilege_type:v "
        "is_grantable:w with_hierarchy:w"
    ),
    "tables": (
        "table_catalog:n table_schema:n table_name:n table_type:v self_referencing_column_name:n "
        "reference_generation:v user_defined_type_catalog:n user_defined_type_schema:n "
        "user_defined_type_name:n is_insertable_into:w is_typed:w commit_action:v"
    ),
    "triggered_update_columns": (
        "trigger_catalog:n trigger_schema:n trigger_name:n event_object_catalog:n "
        "event_object_schema:n event_object_table:n event_object_column:n"
    ),
    "triggers": (
        "trigger_catalog:n trigger_schema:n trigger_name:n event_manipulation:v "
        "event_object_catalog:n event_object_schema:n event_object_table:n action_order:4 "
        "action_condition:v action_statement:v action_orientation:v action_timing:v "
        "action_reference_old_table:n action_reference_new_table:n action_reference_old_row:n "
        "action_reference_new_row:n created:z"
    ),
    "user_mapping_options": (
        "authorization_identifier:n foreign_server_catalog:n foreign_server_name:n option_name:n "
        "option_value:v"
    ),
    "user_mappings": "authorization_identifier:n foreign_server_catalog:n foreign_server_name:n",
    "view_column_usage": (
        "view_catalog:n view_schema:n view_name:n table_catalog:n table_schema:n table_name:n "
        "column_name:n"
    ),
    "view_routine_usage": (
        "table_catalog:n table_schema:n table_name:n specific_catalog:n specific_schema:n "
        "specific_name:n"
    ),
    "view_table_usage": (
        "view_catalog:n view_schema:n view_name:n table_catalog:n table_schema:n table_name:n"
    ),
    "views": (
        "table_catalog:n table_schema:n table_name:n view_definition:v check_option:v "
        "is_updatable:w is_insertable_into:w is_trigger_updatable:w is_trigger_deletable:w "
        "is_trigger_insertable_into:w"
    ),
}
