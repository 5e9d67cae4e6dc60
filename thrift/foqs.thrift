/**
 * FOQS: a distributed, multi-tenant, durable priority queue.
 *
 * This file is the contract between every client and every host, and its
 * comments are the API reference.
 *
 * Transport: framed (4-byte big-endian length, then the message); binary
 * protocol, or compact if the first byte of the message is 0x82. A connection
 * may carry many calls at once. Replies may come in another order than the
 * calls; the sequence id of the message matches them.
 *
 * Conventions, for every call:
 *  - A unit ends a name: `_ms` is integer milliseconds.
 *  - Replies give *remaining* times; a client's clock is never compared with
 *    the server's.
 *  - Fields are optional on the wire. If a field is "required", a request
 *    without it fails with INVALID_ARGUMENT, which names the field.
 *  - `timeout_ms` is the time that the caller waits, from the moment at which
 *    the host has read the call. Missing: the host's default. The call always
 *    ends within this time with a reply or an error.
 *  - Calls are batched and answer per item, in the order of the request. A bad
 *    item does not fail the others. CallFailed means that nothing of the call
 *    was or will be written, unless its code is UNKNOWN_OUTCOME.
 *  - A call, a field or a combination that this version does not serve is
 *    answered NOT_IMPLEMENTED and has no effect. A host of contract version 1
 *    ignores a field that it does not know: see `authenticate`, and
 *    docs/compatibility.md.
 */

namespace py foqs_contract.idl
namespace js foqs

/** Why a call or an item failed. Each code implies what the caller can do. */
enum ErrorCode {
  /** The request is wrong. `field` says where, the message says how to correct it. Do not retry. */
  INVALID_ARGUMENT = 1,
  /** A limit of the host or the namespace is exceeded; `field` names the value. */
  LIMIT_EXCEEDED = 2,
  /** There is no such namespace: create it first. */
  NAMESPACE_NOT_FOUND = 3,
  /** Authenticate first, or again. */
  UNAUTHENTICATED = 4,
  /** The principal lacks a grant on the namespace; `field` names the grant. */
  PERMISSION_DENIED = 5,
  /** The namespace's enqueue rate is used up; retry after `retry_after_ms`. */
  RATE_LIMITED = 6,
  /** The host has no room now; retry after `retry_after_ms`, or at another host. */
  OVERLOADED = 7,
  /** The shard or host is not ready (it is starting, or its database is down); retry after `retry_after_ms`. */
  UNAVAILABLE = 8,
  /** This host does not own the shard of the id and could not forward the call; `owner` names the owner if known. */
  NOT_OWNER = 9,
  /** The lease has ended, or a newer lease has replaced its token: another consumer has, or had, the item. Nothing was changed. */
  STALE_LEASE = 10,
  /** There is no such item in this namespace. */
  NOT_FOUND = 11,
  /** The idempotency key was used for a different item. */
  KEY_CONFLICT = 12,
  /** The call's time ran out before anything was written, and nothing will be. */
  DEADLINE_EXCEEDED = 13,
  /** This version, or a single host, does not serve this call, field or combination. */
  NOT_IMPLEMENTED = 14,
  /** It may have been written, or may still be. Only this error can hide a write. */
  UNKNOWN_OUTCOME = 15,
  /** The end of the item's key has passed, and the key is not remembered: an earlier enqueue may have made an item, this one did not. */
  KEY_ENDED = 16,
}

/** The address of a host. */
struct HostAddress {
  1: optional string host,
  2: optional i32 port,
}

struct Error {
  1: optional ErrorCode code,
  /** One sentence for a person: what is wrong and what to do. */
  2: optional string message,
  /** The path of the wrong field in the request: `items[3].topic`. */
  3: optional string field,
  /** The wait before a retry, for the codes that allow one. */
  4: optional i64 retry_after_ms,
  /** With NOT_OWNER: the owner of the shard, if known. */
  5: optional HostAddress owner,
}

/** The whole call failed. */
exception CallFailed {
  1: optional Error error,
}

/** The result for one item of a batch: success, or an error. */
struct Outcome {
  /** Missing: the change is committed. */
  1: optional Error error,
  /** With ack and cancel: the item did not exist any more. This is a success that changed nothing. */
  2: optional bool already_gone,
}

// ---------------------------------------------------------------- the item

enum DeliveryPolicy {
  /** Delivered again after a nack or the end of a lease, until it is acked or its attempts are used up. */
  AT_LEAST_ONCE = 1,
  /** Delivered once: a nack or the end of the lease deletes it. */
  AT_MOST_ONCE = 2,
}

enum ItemState {
  /** Waits for its deliver-after time. */
  DEFERRED = 1,
  /** May be delivered. */
  READY = 2,
  /** Delivered, and neither acked nor nacked yet. */
  LEASED = 3,
  /** Given up. It is kept until it is redriven or its retention ends. */
  DEAD = 4,
}

/** An item to enqueue. Times count from its commit. */
struct NewItem {
  /** Required: 1 to 255 bytes of UTF-8 without NUL. `a`, `A` and `a ` are three topics. */
  1: optional string topic,
  /** Lower is delivered first. Default 0. */
  2: optional i32 priority,
  /** Immutable. Default empty; at most the namespace's limit, by default 10,240 bytes. */
  3: optional binary payload,
  /** Mutable: nack and update can replace it. At most 1,024 bytes. */
  4: optional binary metadata,
  /** Not delivered before this time has passed. At most one of delay_ms and deliver_after_ms. */
  5: optional i64 delay_ms,
  /** Not delivered before this moment: milliseconds since 1970-01-01 UTC. A moment in the past means now. */
  6: optional i64 deliver_after_ms,
  /** The time that a consumer has to ack or nack, at least 1 ms. Default: the namespace's. */
  7: optional i64 lease_ms,
  /** The item expires this long after its enqueue: it is deleted, unless it is leased then. Default: never. */
  8: optional i64 ttl_ms,
  /** Default AT_LEAST_ONCE. */
  9: optional DeliveryPolicy delivery_policy,
  /** The item is dead after this number of deliveries without an ack; 0: no limit. Default: the namespace's. */
  10: optional i32 attempts_max,
  /**
   * A second enqueue with the same key and the same item within the namespace's key window returns the first id, marked
   * as repeated. A different item is KEY_CONFLICT. Items are the same if all fields of their requests but
   * trace_context are equal. A key stays in use when its item is deleted. 1 to 255 bytes of UTF-8 without NUL.
   *
   * A key belongs to one of 1,024 key slots, and each slot to one shard. If that shard is not served, the result is
   * UNAVAILABLE. A key that begins with `~` and three lower-case hexadecimal digits below 400 names its slot, so that
   * the keys of one call can share a slot. The slot of any other key is the CRC-32 of its bytes modulo 1,024.
   *
   * The topic of a FIFO queue of Amazon SQS has a key window of 5 minutes. There an item with a group and a known key is a
   * repeat, whatever else it is. With a group, a key that begins with `sqs-fifo-` belongs to such a queue: an item of any
   * other producer with it is UNAVAILABLE.
   */
  11: optional string idempotency_key,
  /**
   * The group of the item, such as a customer: 1 to 255 bytes of UTF-8 without NUL. It is kept and returned as given, and
   * never changes, also if the item is moved, dead, redriven or restored. All items of a group of the namespace are in one
   * shard: its slot is the CRC-32 of the namespace, NUL and the group, modulo 1,024. If that shard is not served, the
   * result is UNAVAILABLE. An idempotency_key of the item is unique within the group and has at most 237 bytes, and its own
   * slot does not count. The policy of the topic says how many items of a group may be leased at once.
   *
   * In the topic of a FIFO queue with the DeduplicationScope `queue`, a key is unique among all groups. All items with a
   * group of all such topics of a namespace are in one shard: that of the slot of the empty group.
   */
  12: optional string group,
  /**
   * The trace to which the item belongs, in any encoding: it is kept and returned as given, and never changes. At most
   * 512 bytes; a longer one is INVALID_ARGUMENT. Empty is the same as missing. It does not say what the item is, so a
   * second enqueue with the same idempotency key may have another one; the first one is kept.
   */
  13: optional binary trace_context,
  /**
   * The end of the idempotency key: a moment by the clock of its shard, in milliseconds since 1970-01-01 UTC. If the key
   * is not remembered then, the result is KEY_ENDED and nothing is written, however late the call arrives. So all
   * enqueues with one key and one end make at most one item. At most the namespace's key window after the enqueue is
   * written; a later one is INVALID_ARGUMENT. It needs an idempotency_key, and does not say what the item is.
   */
  14: optional i64 key_until_ms,
}

/** A delivered item. */
struct Delivery {
  1: optional string id,
  /** Identifies this lease of the item. Pass it to ack, nack, extendLease and release. */
  2: optional i64 token,
  3: optional string topic,
  4: optional i32 priority,
  5: optional binary payload,
  6: optional binary metadata,
  /** 1 with the first delivery. A released delivery does not count. */
  7: optional i32 attempt,
  /** The time that was left of the lease when the reply was written. */
  8: optional i64 lease_remaining_ms,
  /** Time since the item was enqueued. */
  9: optional i64 age_ms,
  /** The deliveries that the item may have; 0: no limit. */
  10: optional i32 attempts_max,
  /**
   * Time since the first delivery of the item; 0 with the first one. No nack, release or redrive changes that moment.
   * For an item that a version without this field delivered before, the first delivery is the first one after it.
   */
  11: optional i64 first_delivery_age_ms,
  /** As enqueued; missing: it has none. */
  12: optional binary trace_context,
  /** As enqueued; missing: it has none. */
  13: optional string group,
}

/** An item as it is stored, for people and tools. */
struct ItemView {
  1: optional string id,
  2: optional string topic,
  3: optional ItemState state,
  4: optional i32 priority,
  5: optional binary payload,
  6: optional binary metadata,
  7: optional DeliveryPolicy delivery_policy,
  8: optional i32 attempt,
  9: optional i32 attempts_max,
  10: optional i64 lease_ms,
  /** Time since the item was enqueued. */
  11: optional i64 age_ms,
  /** DEFERRED: the time until it is due. */
  12: optional i64 due_in_ms,
  /** LEASED: the time until its lease ends. */
  13: optional i64 lease_remaining_ms,
  /** The time until its TTL ends, if it has one. */
  14: optional i64 ttl_remaining_ms,
  /** The size of the payload, also if the payload itself was not requested. */
  15: optional i32 payload_bytes,
  /**
   * In getItem, explain, and listItems with `with_key`: the key with which the item was enqueued, as long as the key is remembered and the key
   * window of its topic has not changed, nor its topic to one with another window.
   */
  16: optional string idempotency_key,
  /** DEAD: why it is dead, in words. */
  17: optional string dead_reason,
  /** Time since the first delivery of the item; missing: it was not delivered yet. See Delivery. */
  18: optional i64 first_delivery_age_ms,
  /** As enqueued; missing: it has none. */
  19: optional binary trace_context,
  /** As enqueued; missing: it has none. */
  20: optional string group,
}

// ---------------------------------------------------------- authentication

struct AuthenticateRequest {
  /**
   * A principal's secret. A client certificate needs no call: its subject is a principal. Without a token, the call
   * returns the principal of the connection.
   */
  1: optional string token,
  2: optional i64 timeout_ms,
}

struct AuthenticateReply {
  /** Missing: this host does not require authentication. */
  1: optional string principal,
  /** The version of this contract that the host serves, see docs/compatibility.md. Missing: 1. */
  2: optional i32 contract_version,
}

// ------------------------------------------------------------------ enqueue

struct EnqueueRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the host's items-per-call limit. */
  2: optional list<NewItem> items,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  4: optional bool forwarded,
  /**
   * All items are written in one transaction of one shard, or none is. At most the host's limit of items and bytes
   * (LIMIT_EXCEEDED). A bad item fails the call, and `field` names it. Either all items have idempotency keys, all
   * different, or none has. Keys that belong to different shards are INVALID_ARGUMENT. If all keys are remembered for
   * the same items, the first ids are returned, marked as repeated; if only some are, the call is KEY_CONFLICT.
   */
  5: optional bool atomic,
}

struct EnqueueResult {
  /** `<shard>-<number>`. Present: the item is committed and durable. */
  1: optional string id,
  2: optional Error error,
  /** An earlier enqueue with the same idempotency key created this id. */
  3: optional bool repeated,
}

struct EnqueueReply {
  1: optional list<EnqueueResult> results,
}

// ------------------------------------------------------------------ dequeue

struct TopicCount {
  /** Required. */
  1: optional string topic,
  /** Required: at least 1. The most items of this topic to return. */
  2: optional i32 count,
}

struct DequeueRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: at least one, each topic once. */
  2: optional list<TopicCount> topics,
  /** How long to wait for an item if there is none. Default 0: answer at once. At most `timeout_ms`. */
  3: optional i64 wait_ms,
  4: optional i64 timeout_ms,
  5: optional bool forwarded,
  /** Overrides the items' own lease durations for this delivery. */
  6: optional i64 lease_ms,
  /** The most items of all topics together, at least 1; topics are served in the order of the request. Default: the host's limit. */
  7: optional i32 items_max,
  /** Only items of the called host: for callers that call the hosts of the tier themselves, see `availability`. */
  8: optional bool local_only,
  /**
   * The most items of a strict group (group_leases_max 1) to return together, 1 to 100: a run. Default 1. Other topics ignore it.
   *
   * The items of a run follow each other in the reply. Handle them in this order, and settle each by its token. Nothing
   * more of the group is delivered until none of them is leased. If the lease of one ends by a nack (but not with `dead`),
   * a release, an extension by 0 ms or its time, those behind it are superseded: their tokens are STALE_LEASE, they are
   * READY again without an attempt, and with AT_MOST_ONCE they are gone, except after a release.
   */
  9: optional i32 run_max,
}

/** The availability of a topic at a host, as the answering host knows it. */
struct TopicAvailability {
  1: optional string topic,
  2: optional HostAddress host,
  /** The priority of the best READY item. Missing: there is none. */
  3: optional i32 best_priority,
  4: optional i64 ready,
  /** The age of this information; 0 for the answering host itself. */
  5: optional i64 age_ms,
  /** Of a fair topic: how long the next group of this host has waited for its turn. */
  6: optional i64 turn_age_ms,
}

struct DequeueReply {
  /** Best first within a topic: by priority, then deliver-after time, then arrival. Empty: nothing became ready in time. */
  1: optional list<Delivery> items,
  /** In a cluster: where items of the requested topics are left. Other hosts are not known to have any. */
  2: optional list<TopicAvailability> availability,
  /**
   * Without items: how many shards may hold items of the topics, but could not deliver when the wait ended. Missing: none,
   * so the topics have nothing ready. If no shard that may hold items could deliver, the call is UNAVAILABLE instead,
   * unless a lease may have been written for it.
   */
  3: optional i32 unavailable_shards,
  /** With items: the incarnation of their namespace, as getNamespace answers it. With it, an id is unique among all installations. */
  4: optional i64 incarnation,
}

struct AbandonDequeuesRequest {
  /** Required: the sequence ids of the calls, as in the heads of their messages. Others are ignored. */
  1: optional list<i32> sequence_ids,
  2: optional i64 timeout_ms,
}

// ------------------------------------------------- ack, nack, extend, release

/** A lease of an item: the item's id and the token. */
struct Lease {
  /** Required. */
  1: optional string id,
  /** Required. */
  2: optional i64 token,
}

struct AckRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the items-per-call limit; each id once. */
  2: optional list<Lease> leases,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  4: optional bool forwarded,
}

/** An item that is done, and how many items follow from it. */
struct Completion {
  /** Required. */
  1: optional string id,
  /** Required. */
  2: optional i64 token,
  /**
   * Required: at least 1. This many of the request's `items` follow from it, after those of the completions before it. At
   * most the host's limits of items and bytes of an atomic enqueue. They are added to the shard of `id`. A group or an
   * idempotency key that belongs to another shard is INVALID_ARGUMENT, and the error names both fields. Items with
   * neither, and items of the group of `id`, are of that shard.
   */
  3: optional i32 item_count,
}

struct CompleteRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the items-per-call limit; each id once. */
  2: optional list<Completion> completions,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  4: optional bool forwarded,
  /** Required: the items that follow, completion by completion. At most the items-per-call limit. */
  5: optional list<NewItem> items,
}

struct CompletionOutcome {
  /** Present: nothing was written for this entry. */
  1: optional Error error,
  /**
   * Present: the item is deleted, and its items are added; their ids, in the order of the items. An item whose own
   * idempotency key is in use for the same item is not added again: its id is the first one.
   */
  2: optional list<string> ids,
  /** An earlier attempt with the same token and the same items was written; these are its ids. */
  3: optional bool repeated,
}

/** One outcome for each entry of the request, in its order. */
struct CompleteReply {
  1: optional list<CompletionOutcome> outcomes,
}

struct Nack {
  /** Required. */
  1: optional string id,
  /** Required. */
  2: optional i64 token,
  /** Deliver again after this time; 0 means now. If this and deliver_after_ms are missing: after the namespace's backoff, with jitter. */
  3: optional i64 delay_ms,
  /** Deliver again from this moment on: milliseconds since 1970-01-01 UTC. */
  4: optional i64 deliver_after_ms,
  /** Replaces the item's metadata. */
  5: optional binary metadata,
  /** The item is DEAD at once. */
  6: optional bool dead,
}

struct NackRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the items-per-call limit; each id once. */
  2: optional list<Nack> nacks,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  4: optional bool forwarded,
}

struct Extension {
  /** Required. */
  1: optional string id,
  /** Required. */
  2: optional i64 token,
  /**
   * The lease ends this long from now. Missing: the item's lease duration. 0: the lease ends now. Then the item is as
   * after a nack without a delay, but its token can still extend it.
   */
  3: optional i64 lease_ms,
}

struct ExtendLeaseRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the items-per-call limit; each id once. */
  2: optional list<Extension> extensions,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  4: optional bool forwarded,
}

struct ReleaseRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the items-per-call limit; each id once. The items are READY again, and the delivery does not count as an attempt. */
  2: optional list<Lease> leases,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  4: optional bool forwarded,
}

/** One outcome for each entry of the request, in its order. */
struct OutcomesReply {
  1: optional list<Outcome> outcomes,
}

// ---------------------------------------------------------------- discovery

struct TopicFilter {
  /** Only topics whose name has this prefix. */
  1: optional string prefix,
  /** Only topics with an item in one of these states. Missing: READY or LEASED, the *active* topics. */
  2: optional list<ItemState> states,
  /** Only topics of this host's shards. Otherwise topics of the whole tier. */
  3: optional bool local_only,
}

struct Page {
  /** The most rows to return; default 100, at most 1,000. */
  1: optional i32 limit,
  /** Continue after this cursor of an earlier reply. */
  2: optional string cursor,
}

struct GetActiveTopicsRequest {
  /** Required. */
  1: optional string namespace_name,
  2: optional TopicFilter filter,
  3: optional Page page,
  4: optional i64 timeout_ms,
}

struct TopicStats {
  1: optional string topic,
  2: optional i64 ready,
  3: optional i64 deferred,
  4: optional i64 leased,
  5: optional i64 dead,
  /** The priority of the next item to be delivered. */
  6: optional i32 best_priority,
  /**
   * The time since the earliest deliver-after of the ready items, among the best 50 priorities that the hosts hold in
   * memory.
   */
  7: optional i64 oldest_ready_age_ms,
  /** The time until the next deferred item is due or the next lease ends. Always missing in this version. */
  8: optional i64 next_due_in_ms,
  9: optional bool paused,
  /**
   * The counts are too low: a new owner is still counting, a shard is not served now, or the gossip of a host is not
   * complete yet.
   */
  10: optional bool counts_lag,
  /**
   * The topic's limit on the leases of a group; see TopicPolicy. Then ready items of a group that has its limit of leases
   * wait, though they count. Missing: no limit.
   */
  11: optional i32 group_leases_max,
  /** The groups of the topic take turns; see TopicPolicy. Missing: they do not. */
  12: optional Fairness fair,
}

struct GetActiveTopicsReply {
  1: optional list<TopicStats> topics,
  /** Missing: this was the last page. */
  2: optional string next_cursor,
  /**
   * How many shards are not served now, so that topics of theirs may be missing, or are served while their database does
   * not answer or refuses writes, so that their items cannot be delivered. Missing: none.
   */
  3: optional i32 unavailable_shards,
}

// ------------------------------------------------------------ groups of a topic

/** What a group of a topic waits for. */
enum GroupState {
  /** An item of it may be delivered now. */
  ELIGIBLE = 1,
  /** As many of its items are leased, or being delivered, as the limit of the topic allows. */
  LEASED = 2,
  /** Strict order: its first item was delivered before, and is deferred until its backoff ends. */
  BACKING_OFF = 3,
  /** Its next item is still to be read from the table. */
  UNREAD = 4,
  /** No item of it waits. */
  IDLE = 5,
}

enum GroupOrder {
  /** Those with more READY items than are known come first, the oldest of them at the top; then those with the most known ones. */
  SIZE = 1,
  /** Those whose first READY item has waited longest come first. */
  AGE = 2,
}

struct ListGroupsRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required. */
  2: optional string topic,
  /** Default SIZE. */
  3: optional GroupOrder order,
  /** Only groups in one of these states. Missing: in any. */
  4: optional list<GroupState> states,
  /** Only this group. */
  5: optional string group,
  /** The most groups to return; default 100, at most 1,000. */
  6: optional i32 limit,
  7: optional i64 timeout_ms,
  /** Set by a host that forwards the call: the called host answers for its own shards only. For hosts only. */
  8: optional bool forwarded,
  /** With `forwarded`: only these shards; NOT_OWNER or UNAVAILABLE if the host does not serve one of them. Missing: all that it serves. */
  9: optional list<i32> shards,
}

/** A group of a topic, as the owner of its shard has it in memory. */
struct GroupStats {
  1: optional string group,
  /** The number of its shard. */
  2: optional i32 shard,
  3: optional GroupState state,
  /** Its READY items in memory, but for those that are being delivered. */
  4: optional i64 ready,
  /** It has more READY items than these. They are read when their turn comes. */
  5: optional bool ready_more,
  /** Its items that are leased or being delivered. Without a limit or turns by time only the latter are known, and this is missing. */
  6: optional i64 leased,
  /** Strict order: its items that were delivered before and are deferred. */
  7: optional i64 backing_off,
  /** The priority of its first READY item. Missing: none is known. */
  8: optional i32 priority,
  /** The time since the deliver-after of its first READY item. */
  9: optional i64 oldest_ready_age_ms,
  /** LEASED and BACKING_OFF: the items that hold it back, at most 10. */
  10: optional list<string> blockers,
  /** BACKING_OFF: the time until the backoff ends. */
  11: optional i64 resumes_in_ms,
  /** Of a fair topic: how many groups of its host have their turn before it. Missing: it has no turn now. */
  12: optional i64 groups_before,
  /** Of a fair topic: its weight. */
  13: optional i32 weight,
}

/** How many groups are in a state. */
struct GroupCount {
  1: optional GroupState state,
  2: optional i64 groups,
}

struct ListGroupsReply {
  1: optional list<GroupStats> groups,
  /** How many groups are in each state, whatever `states` and `limit` are. With `group`: of this one. A state without groups is missing. */
  2: optional list<GroupCount> counts,
  /** The known READY items without a group. */
  3: optional i64 ungrouped,
  /**
   * Groups may be missing, or have more items than are known: an owner does not have all READY items of the topic in
   * memory, or has more groups than one call counts.
   */
  4: optional bool partial,
  /** The memory of a shard is full of groups under delivery. It delivers no other group of the topic until some have ended. */
  5: optional bool full,
  /** The topic's limit on the leases of a group; see TopicPolicy. */
  6: optional i32 group_leases_max,
  /** What its groups share by taking turns; see TopicPolicy. With neither rule, no group is known. */
  7: optional Fairness fair,
  /** Nothing of the topic is delivered until it is resumed. */
  8: optional bool paused,
}

// ------------------------------------------------------- single items, filters

struct PeekRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required. */
  2: optional string topic,
  /** Default READY; best first. */
  3: optional ItemState state,
  4: optional Page page,
  5: optional bool with_payload,
  6: optional i64 timeout_ms,
  /** Set by a host that forwards the call: the called host answers for its own shards only. For hosts only. */
  7: optional bool forwarded,
  /** With `forwarded`: only these shards; NOT_OWNER or UNAVAILABLE if the host does not serve one of them. Missing: all that it serves. */
  8: optional list<i32> shards,
}

struct ItemsReply {
  1: optional list<ItemView> items,
  2: optional string next_cursor,
  /** With `forwarded`: for each item the cursor of a page that begins after it. */
  3: optional list<string> cursors,
}

struct GetItemRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required. */
  2: optional string id,
  3: optional bool with_payload,
  4: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  5: optional bool forwarded,
}

struct ExplainReply {
  /** Missing: there is no such item, or its shard is not served. */
  1: optional ItemView item,
  /** Why the item is not delivered: sentences, the most important first. Their words may change. */
  2: optional list<string> reasons,
  /** What would change it: sentences. */
  3: optional list<string> remedies,
  /** READY: the items of the topic that are delivered before it, on the called host; missing if they were not counted. */
  4: optional i64 better_items,
  /** There are more than `better_items`: the host stops counting at a limit. */
  5: optional bool better_items_more,
  /** No item of this namespace has this id, or has it any more. */
  6: optional bool absent,
  /** READY, in a topic with a policy for groups: the items of its group that must be settled, or delivered, before it; at most 10. */
  7: optional list<string> blockers,
  /** READY, in a topic with a policy for groups: the READY items of its group that are known to come before it. */
  8: optional i64 group_items_before,
  /** READY, in a fair topic: how many groups of the host have their turn before that of the item. Missing: its group has no turn now. */
  9: optional i64 groups_before,
}

struct CancelRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the items-per-call limit; each id once. */
  2: optional list<string> ids,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  4: optional bool forwarded,
}

/** The fields to change. A missing field stays as it is. At least one field is required. */
struct Change {
  1: optional i32 priority,
  /**
   * Not delivered before this time has passed; 0 means now. Only for READY and DEFERRED items, and shorter than the rest
   * of their TTL: otherwise the item fails with INVALID_ARGUMENT and is not changed. A READY item with 0 keeps its place
   * in the order. At most one of delay_ms and deliver_after_ms.
   */
  2: optional i64 delay_ms,
  /** Not delivered before this moment: milliseconds since 1970-01-01 UTC; otherwise as delay_ms. */
  3: optional i64 deliver_after_ms,
  /** Replaces the metadata. */
  4: optional binary metadata,
}

struct UpdateRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the items-per-call limit; each id once. */
  2: optional list<string> ids,
  /** Required. */
  3: optional Change change,
  4: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  5: optional bool forwarded,
}

/** Selects the items that match all fields. A missing field matches every item. Bounds are inclusive. */
struct ItemFilter {
  1: optional string topic,
  2: optional list<ItemState> states,
  3: optional i32 priority_min,
  4: optional i32 priority_max,
  /** The time since the enqueue, at the start of the count or of the first page. Items enqueued later never match. */
  5: optional i64 age_min_ms,
  6: optional i64 age_max_ms,
  /** Only items of these topics: 1 to 1,000, and without `topic`. */
  7: optional list<string> topics,
  /** Only items of this group. */
  8: optional string group,
}

struct ListItemsRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Missing: every item. */
  2: optional ItemFilter filter,
  /** Required: the number of one of the tier's shards; getRouting lists them. */
  3: optional i32 shard,
  4: optional Page page,
  5: optional bool with_payload,
  /** With the idempotency keys of the items; see ItemView. */
  6: optional bool with_key,
  7: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  8: optional bool forwarded,
}

struct ListItemsReply {
  1: optional list<ItemView> items,
  /** Missing: this was the last page. A page may be short or empty and still not be the last one. */
  2: optional string next_cursor,
  /**
   * The shard's time at which the page was read: milliseconds since 1970-01-01 UTC. The ages and remaining times of the
   * items count from it.
   */
  3: optional i64 now_ms,
}

struct ExtendHeldLeasesRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the items-per-call limit; each id once. */
  2: optional list<string> ids,
  /** The leases end this long from now, or later if they do already. Limits are those of Extension. Missing: the items' own lease durations. */
  3: optional i64 lease_ms,
  4: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  5: optional bool forwarded,
}

struct CountItemsRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required. */
  2: optional ItemFilter filter,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call: the called host answers for its own shards only. For hosts only. */
  4: optional bool forwarded,
  /** With `forwarded`: only these shards; NOT_OWNER or UNAVAILABLE if the host does not serve one of them. Missing: all that it serves. */
  5: optional list<i32> shards,
}

struct CountItemsReply {
  1: optional i64 items,
  /** Missing for a filter by topic and states only, since no item is read then. */
  2: optional i64 payload_bytes,
}

enum BulkAction {
  CANCEL = 1,
  UPDATE = 2,
  REDRIVE = 3,
}

struct BulkRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required. */
  2: optional ItemFilter filter,
  /** Required without `move_to`. With REDRIVE, the filter's states are DEAD or missing. */
  3: optional BulkAction action,
  /** Required with UPDATE. */
  4: optional Change change,
  5: optional Page page,
  6: optional i64 timeout_ms,
  /** Set by a host that forwards the call: the called host answers for its own shards only. For hosts only. */
  7: optional bool forwarded,
  /** With `forwarded`: only these shards; NOT_OWNER or UNAVAILABLE if the host does not serve one of them. Missing: all that it serves. */
  8: optional list<i32> shards,
  /** In place of an action: moves the items to this topic, as moveItems does. The filter names the topic of the items. */
  9: optional string move_to,
  /**
   * In place of an action: changes nothing, and counts the items that match, as `matched`. Its page ends after about
   * half a second, whatever the limit is; a limit of 0 reads nothing.
   */
  10: optional bool count_only,
}

struct BulkReply {
  /** The items that this page changed. 0 does not mean done: a page reads a bounded number of items. */
  1: optional i64 items,
  /**
   * Missing: done. Otherwise call again with it; it is safe to repeat a page. An item whose state or order changes
   * meanwhile may be missed: count at the end, and start again if items are left.
   */
  2: optional string next_cursor,
  /** The items of this page that match but cannot be changed this way, such as a leased item's delay or a delay beyond the TTL. */
  3: optional i64 refused,
  /** Why the first of them was refused. */
  4: optional Error refusal,
  /** The items of this page that matched: changed, refused, counted, or gone meanwhile. Missing from an older host. */
  5: optional i64 matched,
}

// ------------------------------------------------------------- bulk jobs

enum BulkJobState {
  /** A host works on it, or will. */
  RUNNING = 1,
  /** It stands still until it is resumed or cancelled. */
  INTERRUPTED = 2,
  DONE = 3,
  /** It ended with an error that no repetition mends; see `problem`. */
  FAILED = 4,
  CANCELLED = 5,
}

enum BulkJobCommand {
  INTERRUPT = 1,
  RESUME = 2,
  CANCEL = 3,
}

/** What a job does to each item: an action with its fields, as in StartBulkJobRequest. */
struct BulkChange {
  1: optional BulkAction action,
  2: optional Change change,
  3: optional string move_to,
}

struct StartBulkJobRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required. Filter and change have at most 4,096 bytes together, as JSON. */
  2: optional ItemFilter filter,
  /** Required without `move_to`. With REDRIVE, the filter's states are DEAD or missing. */
  3: optional BulkAction action,
  /** Required with UPDATE. */
  4: optional Change change,
  /** In place of an action: moves the items to this topic. The filter names the topic of the items. */
  5: optional string move_to,
  /** The most items to change in a second. Missing: as fast as the shards allow. */
  6: optional i32 rate_per_s,
  /** How many items match, if the caller has counted them; shown with the job. */
  7: optional i64 expected,
  /**
   * Required: a random text of at most 64 bytes. A repeated start with the same key returns the job that was started
   * before. KEY_CONFLICT if that job does something else.
   */
  8: optional string start_key,
  /** LIMIT_EXCEEDED while another job with the same action and topics is running or interrupted. */
  9: optional bool exclusive,
  10: optional i64 timeout_ms,
  /** In place of an action: changes nothing, and counts the items that match, as `seen`, however long that takes. */
  11: optional bool count_only,
  /**
   * With `count_only`: the change on which the caller decides by the number. It is checked against the filter, and kept
   * with the job, as the rate is. It is not made.
   */
  12: optional BulkChange counts_for,
}

/** Times are milliseconds since 1970-01-01 UTC by the clock of the host that recorded them; they are for people. */
struct BulkJob {
  1: optional string id,
  2: optional string namespace_name,
  3: optional ItemFilter filter,
  4: optional BulkAction action,
  5: optional Change change,
  6: optional string move_to,
  7: optional i32 rate_per_s,
  8: optional i64 expected,
  9: optional BulkJobState state,
  /** The items that matched when their page was read. Counts are recorded about once a second. */
  10: optional i64 seen,
  11: optional i64 changed,
  /** Those that matched but cannot be changed this way. */
  12: optional i64 failed,
  /** The counts may be too low, because the result of a page was lost. */
  13: optional bool at_least,
  /** Why the first of the failed items was refused. */
  14: optional string refusal,
  /** FAILED: why. RUNNING: what it waits for, if it cannot go on now. */
  15: optional string problem,
  /** The principal; missing if the host does not authenticate. */
  16: optional string started_by,
  /** The name of the host that works on it, or that still counts its last page. */
  17: optional string owner,
  18: optional i64 started_at_ms,
  19: optional i64 changed_at_ms,
  20: optional i64 ended_at_ms,
  /** See StartBulkJobRequest. */
  21: optional bool count_only,
  /** See StartBulkJobRequest. */
  22: optional BulkChange counts_for,
  /** That of its start. */
  23: optional string start_key,
}

struct ListBulkJobsRequest {
  /** Required. */
  1: optional string namespace_name,
  2: optional i64 timeout_ms,
}

struct ListBulkJobsReply {
  /** The newest first: all that are running or interrupted, and those that ended lately. */
  1: optional list<BulkJob> jobs,
}

struct ControlBulkJobRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required. */
  2: optional string id,
  /** Required. */
  3: optional BulkJobCommand command,
  4: optional i64 timeout_ms,
}

// ----------------------------------------------------------- dead items

struct ListDeadRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Missing: all topics. */
  2: optional string topic,
  3: optional Page page,
  4: optional bool with_payload,
  5: optional i64 timeout_ms,
  /** Set by a host that forwards the call: the called host answers for its own shards only. For hosts only. */
  6: optional bool forwarded,
  /** With `forwarded`: only these shards; NOT_OWNER or UNAVAILABLE if the host does not serve one of them. Missing: all that it serves. */
  7: optional list<i32> shards,
}

struct RedriveRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the items-per-call limit; each id once. The items are READY; their attempts and TTL start again. */
  2: optional list<string> ids,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  4: optional bool forwarded,
}

// ---------------------------------------------------------- moved, restored

struct MoveItemsRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the items-per-call limit; each id once. READY, DEFERRED and DEAD items can be moved. */
  2: optional list<string> ids,
  /** Required: the topic of the new items, of the same namespace. */
  3: optional string topic,
  4: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  5: optional bool forwarded,
  /** The new items expire this long from now, whatever TTL they had. Missing: as `moveItems` says. */
  6: optional i64 ttl_remaining_ms,
}

struct MoveOutcome {
  1: optional Error error,
  /** The id of the new item, in the same shard. Present: the move is committed. */
  2: optional string id,
  /** An earlier call moved the item, to this topic and this id. */
  3: optional bool repeated,
}

/** One outcome for each id of the request, in its order. */
struct MoveItemsReply {
  1: optional list<MoveOutcome> outcomes,
}

/** An item with its history, as an export holds it. Fields that `NewItem` has mean the same. */
struct RestoredItem {
  /** Required. */
  1: optional string topic,
  2: optional i32 priority,
  3: optional binary payload,
  4: optional binary metadata,
  /** Not delivered before this moment: milliseconds since 1970-01-01 UTC. A moment in the past is its place in the order. Default: now. */
  5: optional i64 deliver_after_ms,
  6: optional i64 lease_ms,
  /** The whole TTL, which a redrive gives the item again. */
  7: optional i64 ttl_ms,
  /** The rest of the TTL; default: the whole one. At most `ttl_ms`. */
  8: optional i64 ttl_remaining_ms,
  9: optional DeliveryPolicy delivery_policy,
  10: optional i32 attempts_max,
  /** The deliveries that the item had, at most 1,000,000,000. */
  11: optional i32 attempt,
  /**
   * DEAD: it is dead, with a new retention. LEASED: its lease has ended, so it is READY. Otherwise `deliver_after_ms`
   * decides. In each state it is DEAD if it may not be delivered again.
   */
  12: optional ItemState state,
  /** The item's own key. If it is in use, nothing is restored, and the id is the one of its item. */
  13: optional string idempotency_key,
  /**
   * Required without `idempotency_key`, and not used with it: makes the call repeatable for the namespace's key window.
   * It is not a key of the item. 1 to 200 bytes of UTF-8 without NUL; its slot is that of the key NUL, `restore `, and these bytes.
   */
  14: optional string restore_key,
  15: optional binary trace_context,
  /** With it, a key is unique within the group, and the slot is that of the group; see NewItem. */
  16: optional string group,
}

struct RestoreItemsRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required: 1 to the items-per-call limit. */
  2: optional list<RestoredItem> items,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call. Such a call is not forwarded again. */
  4: optional bool forwarded,
}

// ------------------------------------------------- namespaces, grants, topics

/** The settings of a namespace. A reply holds all of them, with the host's defaults. */
struct NamespaceSettings {
  1: optional string name,
  /**
   * The tier of the hosts that serve it. Default: the tier of the called host, which serves no other. It is recorded
   * when the namespace is created and does not change. Hosts of other tiers refuse its new items with INVALID_ARGUMENT.
   */
  2: optional string tier,
  /** Enqueues per minute over all hosts; 0: no limit. */
  3: optional i64 enqueues_per_minute,
  /** For this and the next two fields, 0 means no limit. */
  4: optional i64 backlog_items_max,
  5: optional i64 backlog_bytes_max,
  6: optional i32 topics_max,
  7: optional i32 payload_bytes_max,
  8: optional i64 lease_ms_default,
  9: optional i32 attempts_max_default,
  10: optional i64 backoff_ms_min,
  11: optional i64 backoff_ms_max,
  12: optional i64 dead_retention_ms,
  13: optional i64 key_window_ms,
  /** The part of a busy host, relative to other namespaces. Default 1. */
  14: optional i32 weight,
  15: optional i64 lease_ms_max,
  16: optional i32 metadata_bytes_max,
  /**
   * Only in the reply of getNamespace: the latest key_until_ms that an enqueue may name now, less a minute for shards whose
   * clocks differ. It is a moment and no setting: a request with it is served as without it.
   */
  17: optional i64 keys_until_ms,
  /**
   * Only in the reply of getNamespace: the number of this life of the namespace, from 1. No other namespace has it, nor a
   * namespace of this name after a deletion, nor one of another installation. A request with it is served as without it.
   */
  18: optional i64 incarnation,
}

struct SetNamespaceRequest {
  /** Required: settings.name. With update, a missing setting stays as it is. */
  1: optional NamespaceSettings settings,
  2: optional i64 timeout_ms,
}

struct NamespaceRequest {
  /** Required. */
  1: optional string namespace_name,
  2: optional i64 timeout_ms,
  /** Set by a host that forwards the call: the called host answers for its own shards only. For hosts only. */
  3: optional bool forwarded,
  /** With `forwarded`: only these shards; NOT_OWNER or UNAVAILABLE if the host does not serve one of them. Missing: all that it serves. */
  4: optional list<i32> shards,
}

struct ListRequest {
  1: optional Page page,
  2: optional i64 timeout_ms,
}

struct NamespacesReply {
  1: optional list<NamespaceSettings> namespaces,
  2: optional string next_cursor,
}

/** A missing field was not counted. */
struct UsageReply {
  1: optional i64 items,
  2: optional i64 bytes,
  /** In a cluster, missing if a host has more than 10,000 topics. */
  3: optional i32 topics,
  4: optional i64 enqueues_last_minute,
  /** With `forwarded`: the names of the topics, if there are at most 10,000. */
  5: optional list<string> topic_names,
}

enum Permission {
  ENQUEUE = 1,
  CONSUME = 2,
  ADMIN = 3,
}

struct Grant {
  1: optional string principal,
  2: optional string namespace_name,
  3: optional list<Permission> permissions,
}

struct GrantRequest {
  /** Required. An empty list of permissions revokes the grant. */
  1: optional Grant grant,
  2: optional i64 timeout_ms,
}

struct GrantsReply {
  1: optional list<Grant> grants,
  2: optional string next_cursor,
}

struct TopicRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required. */
  2: optional string topic,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call: the called host answers for its own shards only. For hosts only. */
  4: optional bool forwarded,
  /** With `forwarded`: only these shards; NOT_OWNER or UNAVAILABLE if the host does not serve one of them. Missing: all that it serves. */
  5: optional list<i32> shards,
}

/** What the groups of a fair topic share. */
enum Fairness {
  /** Each delivery counts the same. */
  ITEMS = 1,
  /** A delivery counts as long as its lease was held. */
  TIME = 2,
}

/** An order of a topic that is not the usual one. */
enum DeliveryOrder {
  /** A host delivers its own items though another host has better ones. */
  RELAXED = 1,
}

/** A group of a fair topic that gets more than others: as many times as much as a group of weight 1. */
struct GroupWeight {
  /** Required. 1 to 255 bytes of UTF-8 without NUL. */
  1: optional string group,
  /** Required. 1 to 100. */
  2: optional i32 weight,
}

/** How the items of a topic are delivered. A missing field means that there is no such rule. */
struct TopicPolicy {
  /** Required. One topic: there are no patterns. */
  1: optional string topic,
  /**
   * At most this number of items of one group are leased at once: 1 to 1,000. With 1 a group is delivered in strict order:
   * by priority, then by time, and an item that was delivered comes before all others of its group until it is settled.
   * Items without a group have no limit. A lease that has ended cannot be extended.
   */
  2: optional i32 group_leases_max,
  /**
   * The groups take turns within each priority, and share the topic: by items, or by the time that they hold leases. An item
   * without a group is a group of its own. The hosts of a cluster give turns each to the groups of its own shards.
   */
  3: optional Fairness fair,
  /** With `fair`: at most 100 groups that have another weight than 1, each once. */
  4: optional list<GroupWeight> weights,
  /**
   * Missing: a host that knows of better items at another host asks that host for them. RELAXED: it does so only while it has
   * none of its own, however urgent or old those are. A dequeue takes one hop less, and the order is that of each host.
   */
  5: optional DeliveryOrder order,
}

struct SetTopicPolicyRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required. It replaces the topic's policy; without any rule it removes it. */
  2: optional TopicPolicy policy,
  3: optional i64 timeout_ms,
}

struct TopicPoliciesReply {
  /** By topic. */
  1: optional list<TopicPolicy> policies,
}

struct BindTopicRequest {
  /** Required. */
  1: optional string namespace_name,
  /** Required. */
  2: optional string topic,
  /** Only hosts of these regions deliver the topic; empty: all. */
  3: optional list<string> regions,
  4: optional i64 timeout_ms,
}

struct DoneReply {
}

struct PurgeReply {
  /** The items purged, as far as they were counted; 0 if there is no such topic. Their rows are deleted later, in batches. */
  1: optional i64 items,
}

struct ConfigDocument {
  /** The namespaces, grants, pauses, limits and key slots, as JSON. */
  1: optional string json,
  2: optional i64 timeout_ms,
}

// --------------------------------------------------------- shards and hosts

/** A shard, the host that should own it, and its state. */
struct ShardInfo {
  1: optional i32 shard,
  2: optional string tier,
  /** Missing: no host should own it now. */
  3: optional HostAddress owner,
  /** The epoch of that ownership; 0: there was none yet. */
  4: optional i64 epoch,
  /** free, acquiring, recovering, owned, draining or lost. */
  5: optional string state,
  /** The operations that wait for a flush; missing if another host owns the shard. */
  6: optional i64 queued_items,
  /** The region of its database's primary; hosts of this region are preferred as owners. */
  7: optional string region,
  /** Why it is not served, if it is not. */
  8: optional string reason,
  /** The owner's name. */
  9: optional string owner_name,
  /** The name of its database in the configuration of every host. */
  10: optional string database_name,
  /** Its work, relative to other shards. */
  11: optional i32 weight,
  /** It accepts no new items. */
  12: optional bool draining,
  /** The name of the host to which it was moved. It stays there as long as that host runs. */
  13: optional string pinned_to,
  /**
   * Its key slots: 128 bytes; slot 0 is the lowest bit of the first byte. Missing: it has none, or they are not known.
   * In getRouting only.
   */
  14: optional binary key_slots,
}

struct ShardsReply {
  1: optional list<ShardInfo> shards,
  2: optional string next_cursor,
}

struct AddShardRequest {
  /** Required: 0 or more, and not the number of an existing shard. */
  1: optional i32 shard,
  /** Required: the name of its database in the configuration of every host. */
  2: optional string database_name,
  /** Default: the tier of the called host. */
  3: optional string tier,
  /** Its work, relative to other shards, at least 1. Default 1. */
  4: optional i32 weight,
  /** The region of its database's primary. Default: none. */
  5: optional string region,
  6: optional i64 timeout_ms,
}

struct ShardRequest {
  /** Required. */
  1: optional i32 shard,
  /** With moveShard: the address of the new host. Without address and name the planner chooses the host. */
  2: optional HostAddress target,
  3: optional i64 timeout_ms,
  4: optional string target_name,
  /** With removeShard: remove a shard that is not drained. */
  5: optional bool force,
}

struct HostInfo {
  1: optional HostAddress address,
  2: optional string region,
  3: optional string tier,
  /** The number of shards that it should own. */
  4: optional i32 shards,
  /** It is drained: it gets no shards, and hands over those that it owns. */
  5: optional bool draining,
  /** The items that wait there for a flush, as it reported last. */
  6: optional double load,
  7: optional string version,
  /** The same after a restart. */
  8: optional string name,
  /** Identifies this run of the host. No two runs have the same. */
  9: optional string nonce,
  /** Its part of the work, relative to other hosts. */
  10: optional i32 capacity,
  /** It is stopping and hands its shards over. */
  11: optional bool leaving,
}

struct HostsReply {
  1: optional list<HostInfo> hosts,
  2: optional string next_cursor,
}

/** A host, by its address or its name. One of the two is required. */
struct HostRequest {
  1: optional HostAddress host,
  2: optional i64 timeout_ms,
  3: optional string host_name,
}

struct GetRoutingRequest {
  /** The version that the caller has. If it is still the newest, the reply has no hosts and shards. */
  1: optional i64 version,
  2: optional i64 timeout_ms,
  /** The caller accepts only the changes since `version`, if the host remembers them. */
  3: optional bool changes,
}

/** A routing table. Equal versions are equal tables, from any host. Loads are not part of the table. */
struct GetRoutingReply {
  1: optional i64 version,
  2: optional list<HostInfo> hosts,
  3: optional list<ShardInfo> shards,
  /** The tier of the answering host. */
  4: optional string tier,
  /**
   * Present: `hosts` and `shards` hold only those that are new or changed since this version, the caller's. Missing:
   * they hold all.
   */
  5: optional i64 since,
  /** With `since`: nonces of the removed hosts. */
  6: optional list<string> removed_hosts,
  7: optional list<i32> removed_shards,
  /** With `changes` only: the items that wait for a flush at each host of the table, in the order of the nonces. */
  8: optional list<double> loads,
}

// ------------------------------------------------------------ between hosts

/** A topic at one host. Without `ready`: the host holds none of its items any more. */
struct TopicUpdate {
  1: optional string namespace_name,
  2: optional string topic,
  /** At least 1 while the counts lag and there may be READY items. */
  3: optional i64 ready,
  4: optional i64 deferred,
  5: optional i64 leased,
  6: optional i64 dead,
  /** The priority of the best READY item; missing if there is none, or if the host has not read it yet. */
  7: optional i32 best_priority,
  8: optional i64 oldest_ready_age_ms,
  9: optional bool counts_lag,
  /**
   * With a limit on the leases of groups: how many READY items no group holds back, as far as the host knows, and at least 1
   * while it may find one. Missing: all of `ready`.
   */
  10: optional i64 deliverable,
  /** Of a fair topic: how long the next group of this host has waited for its turn. */
  11: optional i64 turn_age_ms,
}

/** A report of one host on a namespace: its enqueues and its backlog. */
struct NamespaceReport {
  1: optional string namespace_name,
  /** The arrival rate: the items in recent enqueues, accepted or refused. */
  2: optional i64 arrivals_per_minute,
  3: optional i64 items,
  4: optional i64 payload_bytes,
  /** The items that the host has accepted in all. Only differences have a meaning. */
  5: optional i64 enqueued_items,
}

/** How fast a topic gets and loses work at one host: items per second, lately. */
struct TopicRate {
  1: optional string namespace_name,
  2: optional string topic,
  /** Items that became READY: enqueued without a delay, due, or given back. */
  3: optional double ready_per_s,
  4: optional double acked_per_s,
}

struct ListAuditRequest {
  /** The most entries, 1 to 1,000. If there are more, each principal has an equal part. Missing: 100. */
  1: optional i32 limit,
  /** Only changes that name this namespace. Missing: all. */
  2: optional string only_namespace,
  3: optional i64 timeout_ms,
  /** Set by a host that forwards the call: the called host reports its own changes only. For hosts only. */
  4: optional bool forwarded,
}

/** A change that an administrator made, or that was refused. */
struct AuditEntry {
  /** When it ended: milliseconds since 1970-01-01 UTC by the clock of the host. */
  1: optional i64 at_ms,
  /** Missing if the host does not authenticate. */
  2: optional string principal,
  /** The address that the call came from; after `console ` the browser's, after `sqs ` the program's. */
  3: optional string peer,
  /** The name of the call, or `sqs.` and an action. */
  4: optional string call,
  5: optional string namespace_name,
  /** What it concerned, as the host understood it, for people. No payload and no metadata is in it. */
  6: optional string target,
  /** OK, or the code of the error. */
  7: optional string outcome,
  /** The name of the host that was called. */
  8: optional string host,
}

struct ListAuditReply {
  /** The newest first. */
  1: optional list<AuditEntry> entries,
  /** The hosts that did not report. */
  2: optional list<string> missing_hosts,
}

struct GossipRequest {
  /** The version of the last reply that the calling host has completely; missing: it has none. */
  1: optional i64 version,
  2: optional i64 timeout_ms,
  /** `full_since` of the same reply, if that had `more`. */
  3: optional i64 full_since,
  /** The last reply had `more`: this requests the next page, and not the changes since. */
  4: optional bool continuation,
}

struct GossipReply {
  1: optional i64 version,
  /** The topics that changed since the version of the request. */
  2: optional list<TopicUpdate> topics,
  /** `topics` and the following pages hold all topics of the host. Others are to be removed. */
  3: optional bool full,
  /** There is another page: call again with this reply's version and `full_since`, and with `continuation`. */
  4: optional bool more,
  /** A report on each namespace with a limit that has enqueues or items. */
  5: optional list<NamespaceReport> namespace_reports,
  /** The items that wait for a flush. */
  6: optional double load,
  /** Some shard accepts new items. */
  7: optional bool accepts_items,
  /** In all pages of a whole reply: the version at the first page. */
  8: optional i64 full_since,
  /** The busiest topics of the host. Missing on further pages. */
  9: optional list<TopicRate> topic_rates,
  /** The shards that the host serves, and whose database does not answer or refuses writes. */
  10: optional i32 unavailable_shards,
}

/** An item that the calling host delivers now. */
struct RankItemRequest {
  1: optional string namespace_name,
  2: optional string topic,
  3: optional i32 priority,
  4: optional i64 deliver_after_ms,
  5: optional i64 timeout_ms,
}

/** The READY items of a host that are better than the item and could be delivered. */
struct RankItemReply {
  /** At least this number: the ready index may not hold all of them. */
  1: optional i64 items,
  /** Those of them with a better priority. */
  2: optional i64 by_priority,
  /** For how long the best of them has been READY. */
  3: optional i64 ready_age_ms,
}

// ---------------------------------------------------------------- the service

service Foqs {
  /**
   * Binds a principal to the connection. If the host requires authentication, any earlier call is UNAUTHENTICATED.
   * A wrong token is UNAUTHENTICATED too, after a delay. The connection then has no principal, and it is closed after a
   * few wrong tokens.
   */
  AuthenticateReply authenticate(1: AuthenticateRequest request) throws (1: CallFailed failed),

  /** Adds items. An id in the reply means that the item is committed. With `atomic`, all are committed, or the call fails. */
  EnqueueReply enqueue(1: EnqueueRequest request) throws (1: CallFailed failed),

  /**
   * Leases the best ready items of the topics. Waits for items if there are none. If it found none, and no shard that may
   * hold some can deliver when the wait ends, it is UNAVAILABLE.
   */
  DequeueReply dequeue(1: DequeueRequest request) throws (1: CallFailed failed),

  /**
   * Ends dequeues of the same connection whose callers do not wait any more. Each gets a reply without items, unless its
   * reply was sent before. So when this call is answered, every reply with items has arrived, and its reader can release
   * them. To close the connection also ends its dequeues, but a reply that is on its way is lost then.
   */
  DoneReply abandonDequeues(1: AbandonDequeuesRequest request) throws (1: CallFailed failed),

  /**
   * Deletes items that are done. A token is valid until the item is leased
   * again, even after the lease ended; then it is STALE_LEASE. The ack of an item
   * that does not exist any more is a success with `already_gone`.
   */
  OutcomesReply ack(1: AckRequest request) throws (1: CallFailed failed),

  /**
   * Acks items and adds the items that follow from each, in one transaction of its shard, or does neither. The token is
   * valid as for an ack. If it was superseded, or the item is gone, the entry is STALE_LEASE and nothing is written. The
   * limits of the namespace hold as for an enqueue. The call may be repeated: within the namespace's key window an entry
   * with the same token and the same items replies the same ids, marked as repeated. It needs ENQUEUE and CONSUME.
   */
  CompleteReply complete(1: CompleteRequest request) throws (1: CallFailed failed),

  /** Returns items that are not done: they are delivered again at once, later or after a backoff, or they are dead. Only while the lease lasts. */
  OutcomesReply nack(1: NackRequest request) throws (1: CallFailed failed),

  /**
   * Moves the end of leases. A token is valid while its lease lasts. It stays valid after the lease has ended, while the
   * item is ready: then the item is leased again, with the same token and attempt. After a nack, a release, a redrive or
   * another delivery it is STALE_LEASE. So an extension that arrives late does not take back an item that was given back.
   */
  OutcomesReply extendLease(1: ExtendLeaseRequest request) throws (1: CallFailed failed),

  /** Returns items that were not tried, without counting the attempt. Only while the lease lasts. */
  OutcomesReply release(1: ReleaseRequest request) throws (1: CallFailed failed),

  /**
   * Lists the topics with items of the whole tier, by name. The counts of other hosts are about a second old. While a
   * shard is not served, or the gossip of a host is not complete, the counts lag, and topics of only that shard or host
   * are missing. If no shard is served, the call is UNAVAILABLE. While a shard moves from one host to another, its items
   * may be counted twice.
   */
  GetActiveTopicsReply getActiveTopics(1: GetActiveTopicsRequest request) throws (1: CallFailed failed),

  /**
   * Lists groups of a topic with a policy for groups: the largest first, or those that have waited longest, and what holds
   * each back. Hosts reply from memory and read no rows for it: see `partial`. If the READY items of a shard were not read
   * since its takeover, the first of them are read soon. If a shard is not served, the call is UNAVAILABLE.
   */
  ListGroupsReply listGroups(1: ListGroupsRequest request) throws (1: CallFailed failed),

  /** Shows items of a topic without delivering them. */
  ItemsReply peek(1: PeekRequest request) throws (1: CallFailed failed),

  /** Shows one item. */
  ItemView getItem(1: GetItemRequest request) throws (1: CallFailed failed),

  /** Explains why an item is not delivered and what would change it, also for an item that does not exist or cannot be read. */
  ExplainReply explain(1: GetItemRequest request) throws (1: CallFailed failed),

  /** Deletes items in any state. The ack of a leased one then replies `already_gone`. */
  OutcomesReply cancel(1: CancelRequest request) throws (1: CallFailed failed),

  /** Changes priority, delay or metadata of items in any state; the delay only of ready and deferred items. */
  OutcomesReply update(1: UpdateRequest request) throws (1: CallFailed failed),

  /**
   * Moves the end of the leases that items have, never to an earlier time, without their tokens: for administrators.
   * The consumer that holds an item keeps it with its token. An item that is not leased is STALE_LEASE.
   */
  OutcomesReply extendHeldLeases(1: ExtendHeldLeasesRequest request) throws (1: CallFailed failed),

  /** Counts the items that match a filter, before a bulk call. */
  CountItemsReply countItems(1: CountItemsRequest request) throws (1: CallFailed failed),

  /** Cancels, updates, redrives or moves the items that match a filter, one page per call. A limit of 0 changes nothing and returns the first cursor. */
  BulkReply bulk(1: BulkRequest request) throws (1: CallFailed failed),

  /**
   * Starts a bulk job: a host of the tier changes all items that match, page by page. The job goes on when that host
   * dies. LIMIT_EXCEEDED if too many jobs are running or interrupted: 8 of a namespace, 32 in all. It may be repeated.
   */
  BulkJob startBulkJob(1: StartBulkJobRequest request) throws (1: CallFailed failed),
  /** Lists the bulk jobs of a namespace. */
  ListBulkJobsReply listBulkJobs(1: ListBulkJobsRequest request) throws (1: CallFailed failed),
  /**
   * Interrupts, resumes or cancels a bulk job. Items may be changed for about a second after an interruption or a
   * cancellation. A job that has ended is INVALID_ARGUMENT. It may be repeated.
   */
  BulkJob controlBulkJob(1: ControlBulkJobRequest request) throws (1: CallFailed failed),

  /**
   * Lists the items of one shard by id, one page per call. An item that exists during all pages and matches the filter
   * is listed once, as it is when its page is read; an item that is enqueued after the first page is not listed.
   */
  ListItemsReply listItems(1: ListItemsRequest request) throws (1: CallFailed failed),

  /** Lists dead items by shard, then topic, then order of delivery. A page may be short or empty and still not the last. */
  ItemsReply listDead(1: ListDeadRequest request) throws (1: CallFailed failed),
  /** Makes dead items READY again. An item that is not dead is NOT_FOUND. */
  OutcomesReply redrive(1: RedriveRequest request) throws (1: CallFailed failed),

  /**
   * Moves items to another topic: each becomes a new item, with a new id, in one transaction. It keeps its priority, its
   * deliver-after time, the rest of its TTL and the time of its enqueue; its attempts start again. A dead item is READY,
   * with a new TTL. In a topic with a limit for the leases of groups, an item with a group that is READY is the last one of
   * its group. A LEASED item is INVALID_ARGUMENT. The call may be repeated: within the namespace's key window it replies the
   * same id. An item that was moved to another topic is KEY_CONFLICT.
   */
  MoveItemsReply moveItems(1: MoveItemsRequest request) throws (1: CallFailed failed),
  /** Adds exported items with their history. Limits are those of enqueue. The call may be repeated, because each item has a key. */
  EnqueueReply restoreItems(1: RestoreItemsRequest request) throws (1: CallFailed failed),

  /** Creates a namespace. Other settings have the host's defaults. A repeated call with the same settings changes nothing. */
  NamespaceSettings createNamespace(1: SetNamespaceRequest request) throws (1: CallFailed failed),
  NamespaceSettings updateNamespace(1: SetNamespaceRequest request) throws (1: CallFailed failed),
  NamespaceSettings getNamespace(1: NamespaceRequest request) throws (1: CallFailed failed),
  NamespacesReply listNamespaces(1: ListRequest request) throws (1: CallFailed failed),
  /** Deletes a namespace. Refused with INVALID_ARGUMENT while it holds items. */
  DoneReply deleteNamespace(1: NamespaceRequest request) throws (1: CallFailed failed),
  UsageReply getUsage(1: NamespaceRequest request) throws (1: CallFailed failed),

  /** Sets the permissions of a principal; none revokes them. LIMIT_EXCEEDED beyond the namespace's share of the catalog. */
  DoneReply setGrant(1: GrantRequest request) throws (1: CallFailed failed),
  GrantsReply listGrants(1: NamespaceRequest request) throws (1: CallFailed failed),

  /**
   * Stops deliveries of the topic until it is resumed, even if the topic is empty meanwhile. LIMIT_EXCEEDED beyond the
   * namespace's share of the catalog.
   */
  DoneReply pauseTopic(1: TopicRequest request) throws (1: CallFailed failed),
  DoneReply resumeTopic(1: TopicRequest request) throws (1: CallFailed failed),
  /**
   * Deletes all items that the topic holds now, in every state: none of them is delivered, listed or counted any more.
   * An item that is enqueued during the call may survive. The ack of a leased one replies `already_gone`. After
   * UNKNOWN_OUTCOME some items may be left: call again.
   */
  PurgeReply purgeTopic(1: TopicRequest request) throws (1: CallFailed failed),
  /**
   * Sets how the items of a topic are delivered, or removes that. Hosts follow as soon as they read it; leases stay, also
   * those above a new limit. NOT_IMPLEMENTED while a host of the cluster is of a version that would not keep it.
   * LIMIT_EXCEEDED beyond the namespace's share of the catalog.
   */
  DoneReply setTopicPolicy(1: SetTopicPolicyRequest request) throws (1: CallFailed failed),
  /** Lists the policies of all topics of a namespace that have one. */
  TopicPoliciesReply listTopicPolicies(1: NamespaceRequest request) throws (1: CallFailed failed),
  /** Reserved: this version answers NOT_IMPLEMENTED. */
  DoneReply bindTopic(1: BindTopicRequest request) throws (1: CallFailed failed),

  ConfigDocument exportConfig(1: ListRequest request) throws (1: CallFailed failed),
  /** Replaces the whole catalog. INVALID_ARGUMENT if a namespace that is not in the document holds items. */
  DoneReply importConfig(1: ConfigDocument request) throws (1: CallFailed failed),

  /** Lists the shards of the cluster by number. Any host answers. */
  ShardsReply listShards(1: ListRequest request) throws (1: CallFailed failed),
  /**
   * Adds a shard. This call and those that remove, move and drain return when the change is recorded; the hosts follow
   * within seconds. Each may be repeated. A single host answers NOT_IMPLEMENTED.
   */
  DoneReply addShard(1: AddShardRequest request) throws (1: CallFailed failed),
  /** Removes a drained shard from the cluster. Its tables stay, with the items that it may still hold. */
  DoneReply removeShard(1: ShardRequest request) throws (1: CallFailed failed),
  /** Hands a shard over to a host, which keeps it as long as it runs. */
  DoneReply moveShard(1: ShardRequest request) throws (1: CallFailed failed),
  /** Stops new items for a shard. Its items are still delivered. */
  DoneReply drainShard(1: ShardRequest request) throws (1: CallFailed failed),
  DoneReply undrainShard(1: ShardRequest request) throws (1: CallFailed failed),
  /** Lists the running hosts of the cluster by name. Any host answers. */
  HostsReply listHosts(1: ListRequest request) throws (1: CallFailed failed),
  /** Hands the host's shards over to others. It gets none until it is undrained, even after a restart. */
  DoneReply drainHost(1: HostRequest request) throws (1: CallFailed failed),
  DoneReply undrainHost(1: HostRequest request) throws (1: CallFailed failed),

  /**
   * Lists the last changes of administrators at all hosts of the tier. Each host remembers its last 1,000 until it
   * stops; its log has all of them.
   */
  ListAuditReply listAudit(1: ListAuditRequest request) throws (1: CallFailed failed),

  /** Returns the routing table. Any host answers. Loads are not part of the version. */
  GetRoutingReply getRouting(1: GetRoutingRequest request) throws (1: CallFailed failed),

  /** Returns the topics of the called host and its reports on limited namespaces. Hosts of a tier call each other about once a second. For hosts only. */
  GossipReply gossip(1: GossipRequest request) throws (1: CallFailed failed),

  /** Returns over how many READY items of the called host a delivery at the calling one passes. For hosts only. */
  RankItemReply rankItem(1: RankItemRequest request) throws (1: CallFailed failed),
}
