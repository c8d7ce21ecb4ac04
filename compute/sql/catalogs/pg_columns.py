"""The columns of pg_catalog, as PostgreSQL 15 has them: ``name:type`` in their order.

The types are written short; `relations.TYPES` says what they are.
"""

from __future__ import annotations

from typing import Final

PG_CATALOG: Final[dict[str, str]] = {
    "pg_aggregate": (
        "aggfnoid:p aggkind:c aggnumdirectargs:2 aggtransfn:p aggfinalfn:p aggcombinefn:p "
        "aggserialfn:p aggdeserialfn:p aggmtransfn:p aggminvtransfn:p aggmfinalfn:p "
        "aggfinalextra:b aggmfinalextra:b aggfinalmodify:c aggmfinalmodify:c aggsortop:o "
        "aggtranstype:o aggtransspace:4 aggmtranstype:o aggmtransspace:4 agginitval:t "
        "aggminitval:t"
    ),
    "pg_am": "oid:o amname:n amhandler:p amtype:c",
    "pg_amop": (
        "oid:o amopfamily:o amoplefttype:o amoprighttype:o amopstrategy:2 amoppurpose:c amopopr:o "
        "amopmethod:o amopsortfamily:o"
    ),
    "pg_amproc": "oid:o amprocfamily:o amproclefttype:o amprocrighttype:o amprocnum:2 amproc:p",
    "pg_attrdef": "oid:o adrelid:o adnum:2 adbin:t",
    "pg_attribute": (
        "attrelid:o attname:n atttypid:o attstattarget:4 attlen:2 attnum:2 attndims:4 "
        "attcacheoff:4 atttypmod:4 attbyval:b attalign:c attstorage:c attcompression:c "
        "attnotnull:b atthasdef:b atthasmissing:b attidentity:c attgenerated:c attisdropped:b "
        "attislocal:b attinhcount:4 attcollation:o attacl:t[] attoptions:t[] attfdwoptions:t[] "
        "attmissingval:t"
    ),
    "pg_auth_members": "roleid:o member:o grantor:o admin_option:b",
    "pg_authid": (
        "oid:o rolname:n rolsuper:b rolinherit:b rolcreaterole:b rolcreatedb:b rolcanlogin:b "
        "rolreplication:b rolbypassrls:b rolconnlimit:4 rolpassword:t rolvaliduntil:z"
    ),
    "pg_available_extension_versions": (
        "name:n version:t installed:b superuser:b trusted:b relocatable:b schema:n requires:n[] "
        "comment:t"
    ),
    "pg_available_extensions": "name:n default_version:t installed_version:t comment:t",
    "pg_cast": "oid:o castsource:o casttarget:o castfunc:o castcontext:c castmethod:c",
    "pg_class": (
        "oid:o relname:n relnamespace:o reltype:o reloftype:o relowner:o relam:o relfilenode:o "
        "reltablespace:o relpages:4 reltuples:r relallvisible:4 reltoastrelid:o relhasindex:b "
        "relisshared:b relpersistence:c relkind:c relnatts:2 relchecks:2 relhasrules:b "
        "relhastriggers:b relhassubclass:b relrowsecurity:b relforcerowsecurity:b "
        "relispopulated:b relreplident:c relispartition:b relrewrite:o relfrozenxid:x "
        "relminmxid:x relacl:t[] reloptions:t[] relpartbound:t"
    ),
    "pg_collation": (
        "oid:o collname:n collnamespace:o collowner:o collprovider:c collisdeterministic:b "
        "collencoding:4 collcollate:t collctype:t colliculocale:t collversion:t"
    ),
    "pg_constraint": (
        "oid:o conname:n connamespace:o contype:c condeferrable:b condeferred:b convalidated:b "
        "conrelid:o contypid:o conindid:o conparentid:o confrelid:o confupdtype:c confdeltype:c "
        "confmatchtype:c conislocal:b coninhcount:4 connoinherit:b conkey:2[] confkey:2[] "
        "conpfeqop:o[] conppeqop:o[] conffeqop:o[] confdelsetcols:2[] conexclop:o[] conbin:t"
    ),
    "pg_conversion": (
        "oid:o conname:n connamespace:o conowner:o conforencoding:4 contoencoding:4 conproc:p "
        "condefault:b"
    ),
    "pg_cursors": "name:t statement:t is_holdable:b is_binary:b is_scrollable:b creation_time:z",
    "pg_database": (
        "oid:o datname:n datdba:o encoding:4 datlocprovider:c datistemplate:b datallowconn:b "
        "datconnlimit:4 datfrozenxid:x datminmxid:x dattablespace:o datcollate:t datctype:t "
        "daticulocale:t datcollversion:t datacl:t[]"
    ),
    "pg_db_role_setting": "setdatabase:o setrole:o setconfig:t[]",
    "pg_default_acl": "oid:o defaclrole:o defaclnamespace:o defaclobjtype:c defaclacl:t[]",
    "pg_depend": "classid:o objid:o objsubid:4 refclassid:o refobjid:o refobjsubid:4 deptype:c",
    "pg_description": "objoid:o classoid:o objsubid:4 description:t",
    "pg_enum": "oid:o enumtypid:o enumsortorder:r enumlabel:n",
    "pg_event_trigger": "oid:o evtname:n evtevent:n evtowner:o evtfoid:o evtenabled:c evttags:t[]",
    "pg_extension": (
        "oid:o extname:n extowner:o extnamespace:o extrelocatable:b extversion:t extconfig:o[] "
        "extcondition:t[]"
    ),
    "pg_foreign_data_wrapper": (
        "oid:o fdwname:n fdwowner:o fdwhandler:o fdwvalidator:o fdwacl:t[] fdwoptions:t[]"
    ),
    "pg_foreign_server": (
        "oid:o srvname:n srvowner:o srvfdw:o srvtype:t srvversion:t srvacl:t[] srvoptions:t[]"
    ),
    "pg_foreign_table": "ftrelid:o ftserver:o ftoptions:t[]",
    "pg_group": "groname:n grosysid:o grolist:o[]",
    "pg_index": (
        "indexrelid:o indrelid:o indnatts:2 indnkeyatts:2 indisunique:b indnullsnotdistinct:b "
        "indisprimary:b indisexclusion:b indimmediate:b indisclustered:b indisvalid:b "
        "indcheckxmin:b indisready:b indislive:b indisreplident:b indkey:2v indcollation:ov "
        "indclass:ov indoption:2v indexprs:t indpred:t"
    ),
    "pg_indexes": "schemaname:n tablename:n indexname:n tablespace:n indexdef:t",
    "pg_inherits": "inhrelid:o inhparent:o inhseqno:4 inhdetachpending:b",
    "pg_language": (
        "oid:o lanname:n lanowner:o lanispl:b lanpltrusted:b lanplcallfoid:o laninline:o "
        "lanvalidator:o lanacl:t[]"
    ),
    "pg_locks": (
        "locktype:t database:o relation:o page:4 tuple:2 virtualxid:t transactionid:x classid:o "
        "objid:o objsubid:2 virtualtransaction:t pid:4 mode:t granted:b fastpath:b waitstart:z"
    ),
    "pg_matviews": (
        "schemaname:n matviewname:n matviewowner:n tablespace:n hasindexes:b ispopulated:b "
        "definition:t"
    ),
    "pg_namespace": "oid:o nspname:n nspowner:o nspacl:t[]",
    "pg_opclass": (
        "oid:o opcmethod:o opcname:n opcnamespace:o opcowner:o opcfamily:o opcintype:o "
        "opcdefault:b opckeytype:o"
    ),
    "pg_operator": (
        "oid:o oprname:n oprnamespace:o oprowner:o oprkind:c oprcanmerge:b oprcanhash:b oprleft:o "
        "oprright:o oprresult:o oprcom:o oprnegate:o oprcode:p oprrest:p oprjoin:p"
    ),
    "pg_opfamily": "oid:o opfmethod:o opfname:n opfnamespace:o opfowner:o",
    "pg_parameter_acl": "oid:o parname:t paracl:t[]",
    "pg_partitioned_table": (
        "partrelid:o partstrat:c partnatts:2 partdefid:o partattrs:2v partclass:ov "
        "partcollation:ov partexprs:t"
    ),
    "pg_policies": (
        "schemaname:n tablename:n policyname:n permissive:t roles:n[] cmd:t qual:t with_check:t"
    ),
    "pg_policy": (
        "oid:o polname:n polrelid:o polcmd:c polpermissive:b polroles:o[] polqual:t polwithcheck:t"
    ),
    "pg_prepared_statements": (
        "name:t statement:t prepare_time:z parameter_types:o[] from_sql:b generic_plans:8 "
        "custom_plans:8"
    ),
    "pg_prepared_xacts": "transaction:x gid:t prepared:z owner:n database:n",
    "pg_proc": (
        "oid:o proname:n pronamespace:o proowner:o prolang:o procost:r prorows:r provariadic:o "
        "prosupport:p prokind:c prosecdef:b proleakproof:b proisstrict:b proretset:b "
        "provolatile:c proparallel:c pronargs:2 pronargdefaults:2 prorettype:o proargtypes:ov "
        "proallargtypes:o[] proargmodes:c[] proargnames:t[] proargdefaults:t protrftypes:o[] "
        "prosrc:t probin:t prosqlbody:t proconfig:t[] proacl:t[]"
    ),
    "pg_publication": (
        "oid:o pubname:n pubowner:o puballtables:b pubinsert:b pubupdate:b pubdelete:b "
        "pubtruncate:b pubviaroot:b"
    ),
    "pg_publication_namespace": "oid:o pnpubid:o pnnspid:o",
    "pg_publication_rel": "oid:o prpubid:o prrelid:o prqual:t prattrs:2v",
    "pg_publication_tables": "pubname:n schemaname:n tablename:n attnames:n[] rowfilter:t",
    "pg_range": (
        "rngtypid:o rngsubtype:o rngmultitypid:o rngcollation:o rngsubopc:o rngcanonical:p "
        "rngsubdiff:p"
    ),
    "pg_rewrite": (
        "oid:o rulename:n ev_class:o ev_type:c ev_enabled:c is_instead:b ev_qual:t ev_action:t"
    ),
    "pg_roles": (
        "rolname:n rolsuper:b rolinherit:b rolcreaterole:b rolcreatedb:b rolcanlogin:b "
        "rolreplication:b rolconnlimit:4 rolpassword:t rolvaliduntil:z rolbypassrls:b "
        "rolconfig:t[] oid:o"
    ),
    "pg_rules": "schemaname:n tablename:n rulename:n definition:t",
    "pg_seclabel": "objoid:o classoid:o objsubid:4 provider:t label:t",
    "pg_seclabels": (
        "objoid:o classoid:o objsubid:4 objtype:t objnamespace:o objname:t provider:t label:t"
    ),
    "pg_sequence": (
        "seqrelid:o seqtypid:o seqstart:8 seqincrement:8 seqmax:8 seqmin:8 seqcache:8 seqcycle:b"
    ),
    "pg_sequences": (
        "schemaname:n sequencename:n sequenceowner:n data_type:o start_value:8 min_value:8 "
        "max_value:8 increment_by:8 cycle:b cache_size:8 last_value:8"
    ),
    "pg_settings": (
        "name:t setting:t unit:t category:t short_desc:t extra_desc:t context:t vartype:t "
        "source:t min_val:t max_val:t enumvals:t[] boot_val:t reset_val:t sourcefile:t "
        "sourceline:4 pending_restart:b"
    ),
    "pg_shadow": (
        "usename:n usesysid:o usecreatedb:b usesuper:b userepl:b usebypassrls:b passwd:t "
        "valuntil:z useconfig:t[]"
    ),
    "pg_shdepend": "dbid:o classid:o objid:o objsubid:4 refclassid:o refobjid:o deptype:c",
    "pg_shdescription": "objoid:o classoid:o description:t",
    "pg_shseclabel": "objoid:o classoid:o provider:t label:t",
    "pg_stat_activity": (
        "datid:o datname:n pid:4 leader_pid:4 usesysid:o usename:n application_name:t "
        "client_addr:t client_hostname:t client_port:4 backend_start:z xact_start:z query_start:z "
        "state_change:z wait_event_type:t wait_event:t state:t backend_xid:x backend_xmin:x "
        "query_id:8 query:t backend_type:t"
    ),
    "pg_stat_database": (
        "datid:o datname:n numbackends:4 xact_commit:8 xact_rollback:8 blks_read:8 blks_hit:8 "
        "tup_returned:8 tup_fetched:8 tup_inserted:8 tup_updated:8 tup_deleted:8 conflicts:8 "
        "temp_files:8 temp_bytes:8 deadlocks:8 checksum_failures:8 checksum_last_failure:z "
        "blk_read_time:f blk_write_time:f session_time:f active_time:f idle_in_transaction_time:f "
        "sessions:8 sessions_abandoned:8 sessions_fatal:8 sessions_killed:8 stats_reset:z"
    ),
    "pg_stat_database_conflicts": (
        "datid:o datname:n confl_tablespace:8 confl_lock:8 confl_snapshot:8 confl_bufferpin:8 "
        "confl_deadlock:8"
    ),
    "pg_stat_ssl": "pid:4 ssl:b version:t cipher:t bits:4 client_dn:t client_serial:u issuer_dn:t",
    "pg_stat_user_functions": "funcid:o schemaname:n funcname:n calls:8 total_time:f self_time:f",
    "pg_stat_user_indexes": (
        "relid:o indexrelid:o schemaname:n relname:n indexrelname:n idx_scan:8 idx_tup_read:8 "
        "idx_tup_fetch:8"
    ),
    "pg_stat_user_tables": (
        "relid:o schemaname:n relname:n seq_scan:8 seq_tup_read:8 idx_scan:8 idx_tup_fetch:8 "
        "n_tup_ins:8 n_tup_upd:8 n_tup_del:8 n_tup_hot_upd:8 n_live_tup:8 n_dead_tup:8 "
        "n_mod_since_analyze:8 n_ins_since_vacuum:8 last_vacuum:z last_autovacuum:z "
        "last_analyze:z last_autoanalyze:z vacuum_count:8 autovacuum_count:8 analyze_count:8 "
        "autoanalyze_count:8"
    ),
    "pg_statistic_ext": (
        "oid:o stxrelid:o stxname:n stxnamespace:o stxowner:o stxstattarget:4 stxkeys:2v "
        "stxkind:c[] stxexprs:t"
    ),
    "pg_stats": (
        "schemaname:n tablename:n attname:n inherited:b null_frac:r avg_width:4 n_distinct:r "
        "most_common_vals:t most_common_freqs:r[] histogram_bounds:t correlation:r "
        "most_common_elems:t most_common_elem_freqs:r[] elem_count_histogram:r[]"
    ),
    "pg_subscription": (
        "oid:o subdbid:o subskiplsn:t subname:n subowner:o subenabled:b subbinary:b substream:b "
        "subtwophasestate:c subdisableonerr:b subconninfo:t subslotname:n subsynccommit:t "
        "subpublications:t[]"
    ),
    "pg_tables": (
        "schemaname:n tablename:n tableowner:n tablespace:n hasindexes:b hasrules:b hastriggers:b "
        "rowsecurity:b"
    ),
    "pg_tablespace": "oid:o spcname:n spcowner:o spcacl:t[] spcoptions:t[]",
    "pg_timezone_abbrevs": "abbrev:t utc_offset:t is_dst:b",
    "pg_timezone_names": "name:t abbrev:t utc_offset:t is_dst:b",
    "pg_transform": "oid:o trftype:o trflang:o trffromsql:p trftosql:p",
    "pg_trigger": (
        "oid:o tgrelid:o tgparentid:o tgname:n tgfoid:o tgtype:2 tgenabled:c tgisinternal:b "
        "tgconstrrelid:o tgconstrindid:o tgconstraint:o tgdeferrable:b tginitdeferred:b tgnargs:2 "
        "tgattr:2v tgargs:y tgqual:t tgoldtable:n tgnewtable:n"
    ),
    "pg_ts_config": "oid:o cfgname:n cfgnamespace:o cfgowner:o cfgparser:o",
    "pg_ts_dict": "oid:o dictname:n dictnamespace:o dictowner:o dicttemplate:o dictinitoption:t",
    "pg_ts_parser": (
        "oid:o prsname:n prsnamespace:o prsstart:p prstoken:p prsend:p prsheadline:p prslextype:p"
    ),
    "pg_ts_template": "oid:o tmplname:n tmplnamespace:o tmplinit:p tmpllexize:p",
    "pg_type": (
        "oid:o typname:n typnamespace:o typowner:o typlen:2 typbyval:b typtype:c typcategory:c "
        "typispreferred:b typisdefined:b typdelim:c typrelid:o typsubscript:p typelem:o "
        "typarray:o typinput:p typoutput:p typreceive:p typsend:p typmodin:p typmodout:p "
        "typanalyze:p typalign:c typstorage:c typnotnull:b typbasetype:o typtypmod:4 typndims:4 "
        "typcollation:o typdefaultbin:t typdefault:t typacl:t[]"
    ),
    "pg_user": (
        "usename:n usesysid:o usecreatedb:b usesuper:b userepl:b usebypassrls:b passwd:t "
        "valuntil:z useconfig:t[]"
    ),
    "pg_user_mapping": "oid:o umuser:o umserver:o umoptions:t[]",
    "pg_user_mappings": "umid:o srvid:o srvname:n umuser:o usename:n umoptions:t[]",
    "pg_views": "schemaname:n viewname:n viewowner:n definition:t",
}
