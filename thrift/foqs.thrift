/**
 * FOQS: a distributed, multi-tenant, durable priority queue.
 *
 * This file is the contract between every client and every host, and its
 * comments are the API reference.
 *
 * Transport: framed (4-byte big-endian length, then the message); binary
 * protocol, or compact when the first byte of the message is 0x82. A
 * connection may carry many calls at once; replies may leave in another order
 * than their calls came and are matched by the sequence id of the message.
 *
 * Conventions, for every call:
 *  - Units stand at the end of a name: `_ms` is integer milliseconds.
 *  - Replies give *remaining* times; a client's clock is never compared with
 *    the server's.
 *  - Fields are optional on the wire. Where a comment says "must", a missing
 *    field is INVALID_ARGUMENT naming it.
 *  - `timeout_ms` is the time the caller is ready to wait, from the moment the
 *    host has read the call. Missing: the host's default. The call always ends
 *    by then with a reply or an error.
 *  - Calls are batched and answer per item, in the order of the request: one
 *    bad item never fails its neighbours. A CallFailed means that nothing of
 *    the whole call was or will be written, unless its code is
 *    UNKNOWN_OUTCOME.
 *  - A call, a field or a combination that this version does not serve yet is
 *    answered NOT_IMPLEMENTED and has no effect.
 */

namespace py foqs_client.idl
namespace js foqs

/** Why something failed. Each code says what may be done about it. */
enum ErrorCode {
  /** The request is wrong; `field` names where, the message how to mend it. Do not retry. */
  INVALID_ARGUMENT = 1,
  /** A limit of the host or the namespace; `field` names what is too large or too many. */
  LIMIT_EXCEEDED = 2,
  /** No such namespace: create it first. */
  NAMESPACE_NOT_FOUND = 3,
  /** Authenticate first, or again. */
  UNAUTHENTICATED = 4,
  /** The principal lacks a grant on the namespace; `field` names the grant. */
  PERMISSION_DENIED = 5,
  /** The namespace's enqueue rate is used up; retry after `retry_after_ms`. */
  RATE_LIMITED = 6,
  /** The host has no room now; retry after `retry_after_ms`, or at another host. */
  OVERLOADED = 7,
  /** What serves this is not ready (starting, recovering, its database is away); retry after `retry_after_ms`. */
  UNAVAILABLE = 8,
  /** This host does not own the shard of the id, and could not pass the call on; `owner` names the owner when known. */
  NOT_OWNER = 9,
  /** The token was superseded, or its lease is over: the item is, or was, somebody else's. Nothing was changed. */
  STALE_LEASE = 10,
  /** No such item in this namespace. */
  NOT_FOUND = 11,
  /** The idempotency key was used for another item. */
  KEY_CONFLICT = 12,
  /** The time of the call ran out before anything was written; it was withdrawn. */
  DEADLINE_EXCEEDED = 13,
  /** This version, or a host that is alone, does not serve this call, field or combination. */
  NOT_IMPLEMENTED = 14,
  /** It may have been written, or may yet be. The only error that can hide a write. */
  UNKNOWN_OUTCOME = 15,
}

/** Where a host listens. */
struct HostAddress {
  1: optional string host,
  2: optional i32 port,
}

struct Error {
  1: optional ErrorCode code,
  /** One sentence for a person: what is wrong and what to do. */
  2: optional string message,
  /** The request's field that is at fault, as a path: `items[3].topic`. */
  3: optional string field,
  /** When to try again, for the codes that say so. */
  4: optional i64 retry_after_ms,
  /** The owner of the shard, with NOT_OWNER, when known. */
  5: optional HostAddress owner,
}

/** The whole call failed. */
exception CallFailed {
  1: optional Error error,
}

/** Nothing, or an error: the answer for one item of a batch. */
struct Outcome {
  /** Missing: it was done, and is committed. */
  1: optional Error error,
  /** With ack and cancel: the item was already gone; the call is a success that changed nothing. */
  2: optional bool already_gone,
}

// ---------------------------------------------------------------- the item

enum DeliveryPolicy {
  /** Delivered again after a nack or the end of a lease, until acked or out of attempts. */
  AT_LEAST_ONCE = 1,
  /** Delivered once: a nack or the end of its lease deletes it. */
  AT_MOST_ONCE = 2,
}

enum ItemState {
  /** Waits for its deliver-after time. */
  DEFERRED = 1,
  /** May be delivered. */
  READY = 2,
  /** Delivered, and neither acked nor nacked yet. */
  LEASED = 3,
  /** Given up; kept until redriven or aged out by retention. */
  DEAD = 4,
}

/** An item to enqueue. Times count from its commit. */
struct NewItem {
  /** Must: 1 to 255 bytes of UTF-8 without NUL. Kept exactly: `a`, `A` and `a ` are three topics. */
  1: optional string topic,
  /** Lower is delivered first. Default 0. */
  2: optional i32 priority,
  /** Immutable. Default empty; at most the namespace's limit, 10,240 bytes unless set otherwise. */
  3: optional binary payload,
  /** Mutable; may be replaced by nack and update. At most 1,024 bytes. */
  4: optional binary metadata,
  /** Not delivered before this much time has passed. At most one of delay_ms and deliver_after_ms. */
  5: optional i64 delay_ms,
  /** Not delivered before this moment: milliseconds since 1970-01-01 UTC. A moment in the past means now. */
  6: optional i64 deliver_after_ms,
  /** How long a consumer has to ack or nack, from 1 ms. Default: the namespace's. */
  7: optional i64 lease_ms,
  /** Deleted when not delivered within this time from its enqueue. Default: never. */
  8: optional i64 ttl_ms,
  /** Default AT_LEAST_ONCE. */
  9: optional DeliveryPolicy delivery_policy,
  /** Dead after so many deliveries without an ack; 0 means without limit. Default: the namespace's. */
  10: optional i32 attempts_max,
  /**
   * Enqueue again with the same key and the same item within the namespace's window: the first id is returned, marked
   * as repeated; with another item it is KEY_CONFLICT. Items are the same when all fields are as they were given. A
   * key stays taken when its item is gone. 1 to 255 bytes of UTF-8 without NUL.
   *
   * A key belongs to one of 1,024 slots, and slots to shards: where a slot's shard is not served, the answer is
   * UNAVAILABLE. A key that begins with `~` and three lower-case hexadecimal digits below 400 names its slot, so that
   * the keys of one call can share one; of any other it is the CRC-32 of its bytes modulo 1,024.
   */
  11: optional string idempotency_key,
}

/** A delivered item. */
struct Delivery {
  1: optional string id,
  /** Names this lease of this item; give it back with ack, nack, extendLease and release. */
  2: optional i64 token,
  3: optional string topic,
  4: optional i32 priority,
  5: optional binary payload,
  6: optional binary metadata,
  /** 1 with the first delivery. A released delivery does not count. */
  7: optional i32 attempt,
  /** The lease's time that was left when the reply was written. */
  8: optional i64 lease_remaining_ms,
  /** Time since the item was enqueued. */
  9: optional i64 age_ms,
  /** The attempts the item is allowed; 0 means without limit. */
  10: optional i32 attempts_max,
}

/** An item as it is in its shard, for people and tools. */
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
  /** DEFERRED: until it comes due. */
  12: optional i64 due_in_ms,
  /** LEASED: until its lease ends. */
  13: optional i64 lease_remaining_ms,
  /** Until its TTL ends, when it has one. */
  14: optional i64 ttl_remaining_ms,
  /** The size of the payload, also where the payload itself was not asked for. */
  15: optional i32 payload_bytes,
  /**
   * Of an item that was asked for alone (getItem, explain): the key that it was enqueued with, as long as that names it
   * and the namespace's window is what it was then.
   */
  16: optional string idempotency_key,
  /** DEAD: why it was given up, in words. */
  17: optional string dead_reason,
}

// ---------------------------------------------------------- authentication

struct AuthenticateRequest {
  /**
   * A principal's secret. A client certificate's subject is a principal without this call; without a token, the call
   * asks who that is.
   */
  1: optional string token,
  2: optional i64 timeout_ms,
}

struct AuthenticateReply {
  /** Missing: this host asks nobody who he is. */
  1: optional string principal,
}

// ------------------------------------------------------------------ enqueue

struct EnqueueRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must: 1 to the host's items-per-call limit. */
  2: optional list<NewItem> items,
  3: optional i64 timeout_ms,
  /** Set by a host that passes the call on; such a call is never passed on again. */
  4: optional bool forwarded,
}

struct EnqueueResult {
  /** `<shard>-<number>`. Present: the item is committed, durable, and this is its name. */
  1: optional string id,
  2: optional Error error,
  /** The id is that of an earlier enqueue with the same idempotency key. */
  3: optional bool repeated,
}

struct EnqueueReply {
  1: optional list<EnqueueResult> results,
}

// ------------------------------------------------------------------ dequeue

struct TopicCount {
  /** Must. */
  1: optional string topic,
  /** Must: at least 1. At most so many items of this topic are returned. */
  2: optional i32 count,
}

struct DequeueRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must: at least one, each topic once. */
  2: optional list<TopicCount> topics,
  /** Wait this long for an item when there is none. Default 0: answer at once. Cut to `timeout_ms`. */
  3: optional i64 wait_ms,
  4: optional i64 timeout_ms,
  5: optional bool forwarded,
  /** Overrides the items' own lease durations for this delivery. */
  6: optional i64 lease_ms,
  /** At most so many items of all topics together, from 1; topics that are named first are served first. Default: the host's limit. */
  7: optional i32 items_max,
  /** Only what the called host has itself: for callers that ask the hosts of the tier by themselves, see `availability`. */
  8: optional bool local_only,
}

/** What is left of a topic at a host, as far as the answering host knows. */
struct TopicAvailability {
  1: optional string topic,
  2: optional HostAddress host,
  /** Of the best READY item. Missing: there is none. */
  3: optional i32 best_priority,
  4: optional i64 ready,
  /** How long ago this was so; 0 for the answering host itself. */
  5: optional i64 age_ms,
}

struct DequeueReply {
  /** Best first within a topic: by priority, then deliver-after time, then id. Empty: nothing became ready in time. */
  1: optional list<Delivery> items,
  /** In a cluster, of the topics that were asked for: where to ask next. A host that is not named is not known to have any. */
  2: optional list<TopicAvailability> availability,
}

// ------------------------------------------------- ack, nack, extend, release

/** A delivery, named by the item's id and the token of its lease. */
struct Lease {
  /** Must. */
  1: optional string id,
  /** Must. */
  2: optional i64 token,
}

struct AckRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must: 1 to the items-per-call limit; each id once. */
  2: optional list<Lease> leases,
  3: optional i64 timeout_ms,
  /** Set by a host that passes the call on; such a call is never passed on again. */
  4: optional bool forwarded,
}

struct Nack {
  /** Must. */
  1: optional string id,
  /** Must. */
  2: optional i64 token,
  /** Deliver again after this time; 0 means now. Missing, as deliver_after_ms: exponential backoff with jitter by the namespace's policy. */
  3: optional i64 delay_ms,
  /** Deliver again from this moment on: milliseconds since 1970-01-01 UTC. */
  4: optional i64 deliver_after_ms,
  /** Replaces the item's metadata. */
  5: optional binary metadata,
  /** Give the item up: it is DEAD at once. */
  6: optional bool dead,
}

struct NackRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must: 1 to the items-per-call limit; each id once. */
  2: optional list<Nack> nacks,
  3: optional i64 timeout_ms,
  /** Set by a host that passes the call on; such a call is never passed on again. */
  4: optional bool forwarded,
}

struct Extension {
  /** Must. */
  1: optional string id,
  /** Must. */
  2: optional i64 token,
  /** The lease ends this long from now. Missing: the item's lease duration. */
  3: optional i64 lease_ms,
}

struct ExtendLeaseRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must: 1 to the items-per-call limit; each id once. */
  2: optional list<Extension> extensions,
  3: optional i64 timeout_ms,
  /** Set by a host that passes the call on; such a call is never passed on again. */
  4: optional bool forwarded,
}

struct ReleaseRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must: 1 to the items-per-call limit; each id once. The items are ready again, and the attempts do not count. */
  2: optional list<Lease> leases,
  3: optional i64 timeout_ms,
  /** Set by a host that passes the call on; such a call is never passed on again. */
  4: optional bool forwarded,
}

/** One outcome for each entry of the request, in its order. */
struct OutcomesReply {
  1: optional list<Outcome> outcomes,
}

// ---------------------------------------------------------------- discovery

struct TopicFilter {
  /** Only topics whose name begins so. */
  1: optional string prefix,
  /** Only topics with at least one item in one of these states. Missing: READY or LEASED, which is what "active" means. */
  2: optional list<ItemState> states,
  /** Only the topics of this host's own shards; otherwise of the whole tier. */
  3: optional bool local_only,
}

struct Page {
  /** At most so many rows; default 100, at most 1,000. */
  1: optional i32 limit,
  /** Continue after this cursor of an earlier reply. */
  2: optional string cursor,
}

struct GetActiveTopicsRequest {
  /** Must. */
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
   * Since the earliest deliver-after time of the ready items, among those of the best 50 priorities that the hosts hold
   * in memory.
   */
  7: optional i64 oldest_ready_age_ms,
  /** Until the next deferred item comes due or the next lease ends. Missing in this version: no host keeps it by topic. */
  8: optional i64 next_due_in_ms,
  9: optional bool paused,
  /**
   * There is more than is counted: an owner has changed and counts anew, some shard is not served now, or some host has
   * not told everything yet.
   */
  10: optional bool counts_lag,
}

struct GetActiveTopicsReply {
  1: optional list<TopicStats> topics,
  /** Missing: this was the last page. */
  2: optional string next_cursor,
}

// ------------------------------------------------------- single items, filters

struct PeekRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must. */
  2: optional string topic,
  /** Default READY; best first. */
  3: optional ItemState state,
  4: optional Page page,
  5: optional bool with_payload,
  6: optional i64 timeout_ms,
  /** Set by a host that passes the call on: only what the called host has itself is meant. For hosts alone. */
  7: optional bool forwarded,
  /** With `forwarded`: of these shards and no others; NOT_OWNER or UNAVAILABLE where one of them is not served here. Missing: of all that are. */
  8: optional list<i32> shards,
}

struct ItemsReply {
  1: optional list<ItemView> items,
  2: optional string next_cursor,
  /** To a call with `forwarded`: for each item the cursor of a page that begins after it. */
  3: optional list<string> cursors,
}

struct GetItemRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must. */
  2: optional string id,
  3: optional bool with_payload,
  4: optional i64 timeout_ms,
  /** Set by a host that passes the call on; such a call is never passed on again. */
  5: optional bool forwarded,
}

struct ExplainReply {
  /** Missing: it is not there, or its shard cannot be asked. */
  1: optional ItemView item,
  /** Why the item is not delivered, one sentence each, the weightiest first. Their words may change. */
  2: optional list<string> reasons,
  /** What would change it, one sentence each. */
  3: optional list<string> remedies,
  /** READY: items of the topic that come before it, on the host that was asked; missing when not counted. */
  4: optional i64 better_items,
  /** There are more: counting stops at a limit of the host. */
  5: optional bool better_items_more,
  /** It is not there: no item of this namespace has the id, any more or at all. */
  6: optional bool absent,
}

struct CancelRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must: 1 to the items-per-call limit; each id once. */
  2: optional list<string> ids,
  3: optional i64 timeout_ms,
  /** Set by a host that passes the call on; such a call is never passed on again. */
  4: optional bool forwarded,
}

/** What to change; a missing field stays as it is. Must: one field at least. */
struct Change {
  1: optional i32 priority,
  /**
   * Not delivered before this much time has passed; 0 means now. Of READY and DEFERRED items only, and never as long
   * as their TTL: otherwise the item is refused with INVALID_ARGUMENT and not changed at all. A READY item that is to
   * be delivered now keeps its place among its equals. At most one of delay_ms and deliver_after_ms.
   */
  2: optional i64 delay_ms,
  /** Not delivered before this moment: milliseconds since 1970-01-01 UTC; the same holds. */
  3: optional i64 deliver_after_ms,
  /** Replaces the metadata. */
  4: optional binary metadata,
}

struct UpdateRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must: 1 to the items-per-call limit; each id once. */
  2: optional list<string> ids,
  /** Must. */
  3: optional Change change,
  4: optional i64 timeout_ms,
  /** Set by a host that passes the call on; such a call is never passed on again. */
  5: optional bool forwarded,
}

/** Items that match all of it; a missing field matches every item. Bounds are included. */
struct ItemFilter {
  1: optional string topic,
  2: optional list<ItemState> states,
  3: optional i32 priority_min,
  4: optional i32 priority_max,
  /** Time since the enqueue, when the count or the first page begins. Items enqueued later never match. */
  5: optional i64 age_min_ms,
  6: optional i64 age_max_ms,
}

struct CountItemsRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must. */
  2: optional ItemFilter filter,
  3: optional i64 timeout_ms,
  /** Set by a host that passes the call on: only what the called host has itself is meant. For hosts alone. */
  4: optional bool forwarded,
  /** With `forwarded`: of these shards and no others; NOT_OWNER or UNAVAILABLE where one of them is not served here. Missing: of all that are. */
  5: optional list<i32> shards,
}

struct CountItemsReply {
  1: optional i64 items,
  /** Missing where the items were counted without being read: by topic and states alone. */
  2: optional i64 payload_bytes,
}

enum BulkAction {
  CANCEL = 1,
  UPDATE = 2,
  REDRIVE = 3,
}

struct BulkRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must. */
  2: optional ItemFilter filter,
  /** Must. With REDRIVE, the filter's states are DEAD or missing. */
  3: optional BulkAction action,
  /** With UPDATE: must. */
  4: optional Change change,
  5: optional Page page,
  6: optional i64 timeout_ms,
  /** Set by a host that passes the call on: only what the called host has itself is meant. For hosts alone. */
  7: optional bool forwarded,
  /** With `forwarded`: of these shards and no others; NOT_OWNER or UNAVAILABLE where one of them is not served here. Missing: of all that are. */
  8: optional list<i32> shards,
}

struct BulkReply {
  /** Changed by this page. Perhaps none, and yet not done: a page looks at a bounded number of items. */
  1: optional i64 items,
  /**
   * Missing: done. Call again with it otherwise; a page repeated does no harm. An item that changes its state or
   * topic's order meanwhile may be passed over: count again in the end, and begin anew where some are left.
   */
  2: optional string next_cursor,
  /** Items of this page that match and cannot be changed so (a leased item's time, a delay beyond the TTL). */
  3: optional i64 refused,
  /** Why the first of them was refused. */
  4: optional Error refusal,
}

// ----------------------------------------------------------- dead items

struct ListDeadRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Missing: of all topics. */
  2: optional string topic,
  3: optional Page page,
  4: optional bool with_payload,
  5: optional i64 timeout_ms,
  /** Set by a host that passes the call on: only what the called host has itself is meant. For hosts alone. */
  6: optional bool forwarded,
  /** With `forwarded`: of these shards and no others; NOT_OWNER or UNAVAILABLE where one of them is not served here. Missing: of all that are. */
  7: optional list<i32> shards,
}

struct RedriveRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must: 1 to the items-per-call limit; each id once. They are ready with fresh attempts and a fresh TTL. */
  2: optional list<string> ids,
  3: optional i64 timeout_ms,
  /** Set by a host that passes the call on; such a call is never passed on again. */
  4: optional bool forwarded,
}

// ------------------------------------------------- namespaces, grants, topics

/** Of one namespace. In a reply: what holds, the host's defaults included. */
struct NamespaceSettings {
  1: optional string name,
  /**
   * The hosts that serve it. Default: those of the tier of the host that is asked, which serves no other. It is recorded
   * when the namespace is created and does not change; hosts of other tiers refuse its new items with INVALID_ARGUMENT.
   */
  2: optional string tier,
  /** Enqueues a minute over all hosts; 0: unlimited. */
  3: optional i64 enqueues_per_minute,
  /** With the next two, 0 means unlimited. */
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
  /** Share of a busy host, relative to the other namespaces. Default 1. */
  14: optional i32 weight,
  15: optional i64 lease_ms_max,
  16: optional i32 metadata_bytes_max,
}

struct SetNamespaceRequest {
  /** Must: settings.name. With update, a missing setting stays as it is. */
  1: optional NamespaceSettings settings,
  2: optional i64 timeout_ms,
}

struct NamespaceRequest {
  /** Must. */
  1: optional string namespace_name,
  2: optional i64 timeout_ms,
  /** Set by a host that passes the call on: only what the called host has itself is meant. For hosts alone. */
  3: optional bool forwarded,
  /** With `forwarded`: of these shards and no others; NOT_OWNER or UNAVAILABLE where one of them is not served here. Missing: of all that are. */
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

/** What is not counted is missing. */
struct UsageReply {
  1: optional i64 items,
  2: optional i64 bytes,
  /** In a cluster missing where a host has more than 10,000. */
  3: optional i32 topics,
  4: optional i64 enqueues_last_minute,
  /** To a call with `forwarded`: the names of the topics, where they are 10,000 at most. */
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
  /** Must. An empty list of permissions revokes. */
  1: optional Grant grant,
  2: optional i64 timeout_ms,
}

struct GrantsReply {
  1: optional list<Grant> grants,
  2: optional string next_cursor,
}

struct TopicRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must. */
  2: optional string topic,
  3: optional i64 timeout_ms,
  /** Set by a host that passes the call on: only what the called host has itself is meant. For hosts alone. */
  4: optional bool forwarded,
  /** With `forwarded`: of these shards and no others; NOT_OWNER or UNAVAILABLE where one of them is not served here. Missing: of all that are. */
  5: optional list<i32> shards,
}

struct BindTopicRequest {
  /** Must. */
  1: optional string namespace_name,
  /** Must. */
  2: optional string topic,
  /** Only hosts of these regions hand out the topic; empty: all. */
  3: optional list<string> regions,
  4: optional i64 timeout_ms,
}

struct DoneReply {
}

struct PurgeReply {
  /** How many those were, as far as they are counted; 0 for a topic that is not there. Their rows go later, in batches. */
  1: optional i64 items,
}

struct ConfigDocument {
  /** The namespaces, grants, pauses, limits and slots, as JSON. */
  1: optional string json,
  2: optional i64 timeout_ms,
}

// --------------------------------------------------------- shards and hosts

/** A shard, who should own it, and how far that is. */
struct ShardInfo {
  1: optional i32 shard,
  2: optional string tier,
  /** Missing: nobody should own it now. */
  3: optional HostAddress owner,
  /** The number of that ownership; 0: there was none yet. */
  4: optional i64 epoch,
  /** free, acquiring, recovering, owned, draining or lost. */
  5: optional string state,
  /** What waits to be written; missing where another host owns it. */
  6: optional i64 queued_items,
  /** Of its primary; hosts of this region are preferred. */
  7: optional string region,
  /** Why it is not served, when it is not. */
  8: optional string reason,
  /** The owner's name. */
  9: optional string owner_name,
  /** The name under which every host's configuration holds its database. */
  10: optional string database_name,
  /** The work it makes, relative to other shards. */
  11: optional i32 weight,
  /** It takes no new items. */
  12: optional bool draining,
  /** The name of the host that it was moved to, and stays at while that is there. */
  13: optional string pinned_to,
  /**
   * The slots of idempotency keys that it holds: 128 bytes, slot 0 is the lowest bit of the first. Missing: none, or not
   * known. In getRouting only.
   */
  14: optional binary key_slots,
}

struct ShardsReply {
  1: optional list<ShardInfo> shards,
  2: optional string next_cursor,
}

struct AddShardRequest {
  /** Must: 0 or more, of a shard that is not there. */
  1: optional i32 shard,
  /** Must: the name under which the hosts' configurations hold its database. */
  2: optional string database_name,
  /** Default: that of the host that is asked. */
  3: optional string tier,
  /** The work it makes, relative to other shards, from 1. Default 1. */
  4: optional i32 weight,
  /** Of its primary. Default: none. */
  5: optional string region,
  6: optional i64 timeout_ms,
}

struct ShardRequest {
  /** Must. */
  1: optional i32 shard,
  /** With moveShard: the host to move it to, by its address or its name; neither: the planner chooses again. */
  2: optional HostAddress target,
  3: optional i64 timeout_ms,
  4: optional string target_name,
  /** With removeShard: also a shard that takes new items. */
  5: optional bool force,
}

struct HostInfo {
  1: optional HostAddress address,
  2: optional string region,
  3: optional string tier,
  /** How many it should own. */
  4: optional i32 shards,
  /** It shall own nothing. */
  5: optional bool draining,
  /** What waits there to be written, in items, as it told last. */
  6: optional double load,
  7: optional string version,
  /** Stays over restarts. */
  8: optional string name,
  /** Of this run of the host; no two have the same. */
  9: optional string nonce,
  /** How much it can take, relative to other hosts. */
  10: optional i32 capacity,
  /** It is stopping, and gives its shards back. */
  11: optional bool leaving,
}

struct HostsReply {
  1: optional list<HostInfo> hosts,
  2: optional string next_cursor,
}

/** A host, by its address or its name: one of the two must be there. */
struct HostRequest {
  1: optional HostAddress host,
  2: optional i64 timeout_ms,
  3: optional string host_name,
}

struct GetRoutingRequest {
  /** The version the caller has; the reply is without hosts and shards when it is still the newest. */
  1: optional i64 version,
  2: optional i64 timeout_ms,
  /** The caller takes what changed since `version`, where the host remembers that, in place of everything. */
  3: optional bool changes,
}

/** Equal versions are equal maps, whichever host was asked. Loads are no part of a map. */
struct GetRoutingReply {
  1: optional i64 version,
  2: optional list<HostInfo> hosts,
  3: optional list<ShardInfo> shards,
  /** Of the host that answers. */
  4: optional string tier,
  /**
   * `hosts` and `shards` are those that came or changed since this version, which is the one that was named; the others
   * are as they were, but for those that went. Missing: they are all there are.
   */
  5: optional i64 since,
  /** Nonces of the hosts that went. */
  6: optional list<string> removed_hosts,
  7: optional list<i32> removed_shards,
  /** Only where the caller takes changes: what waits now at each host of the map to be written, in items, hosts by nonce. */
  8: optional list<double> loads,
}

// ------------------------------------------------------------ between hosts

/** A topic at one host. Without `ready`: it holds nothing there any more. */
struct TopicUpdate {
  1: optional string namespace_name,
  2: optional string topic,
  /** While the counts lag, 1 at least where there may be READY items. */
  3: optional i64 ready,
  4: optional i64 deferred,
  5: optional i64 leased,
  6: optional i64 dead,
  /** Of the best READY item; missing also where the host has not read yet which that is. */
  7: optional i32 best_priority,
  8: optional i64 oldest_ready_age_ms,
  9: optional bool counts_lag,
}

/** What a namespace asks of one host, and has there. */
struct NamespaceDemand {
  1: optional string namespace_name,
  /** Items that were to be enqueued lately, taken or refused, as a rate. */
  2: optional i64 enqueues_per_minute,
  3: optional i64 items,
  4: optional i64 payload_bytes,
  /** Items that the host has taken in all; only differences mean anything. */
  5: optional i64 enqueued_items,
}

struct GossipRequest {
  /** The version of the last reply that the asking host has whole; missing: it has nothing. */
  1: optional i64 version,
  2: optional i64 timeout_ms,
  /** That of the same reply, if there was `more`. */
  3: optional i64 full_since,
  /** There was `more`, and this asks for it, not for what has changed since. */
  4: optional bool continuation,
}

struct GossipReply {
  1: optional i64 version,
  /** What changed since the version that was named. */
  2: optional list<TopicUpdate> topics,
  /** `topics` is all there is: what is not in it, or in the pages that follow, is gone. */
  3: optional bool full,
  /** There is more: ask again, with this reply's version and `full_since`, and `continuation`. */
  4: optional bool more,
  /** Of every namespace with a limit that was asked for, or holds, anything. */
  5: optional list<NamespaceDemand> demands,
  /** What waits to be written, in items. */
  6: optional double load,
  /** Some shard takes new items. */
  7: optional bool accepts_items,
  /** While all there is is told, from the first page to the last: the version when that began. */
  8: optional i64 full_since,
}

// ---------------------------------------------------------------- the service

service Foqs {
  /**
   * Binds a principal to the connection. Where the host asks who calls, every other call before is UNAUTHENTICATED.
   * A wrong token is UNAUTHENTICATED too, late, and the connection has no principal afterwards; it is closed after a
   * few of them.
   */
  AuthenticateReply authenticate(1: AuthenticateRequest request) throws (1: CallFailed failed),

  /** Adds items. An id in the reply means that the item is committed. */
  EnqueueReply enqueue(1: EnqueueRequest request) throws (1: CallFailed failed),

  /** Leases the best ready items of the topics asked for, waiting for some when there are none. */
  DequeueReply dequeue(1: DequeueRequest request) throws (1: CallFailed failed),

  /**
   * Done: deletes the items. Valid until the item is leased again, even after
   * the lease ended; a superseded token is STALE_LEASE. Acking an item that is
   * already gone is a success with `already_gone`.
   */
  OutcomesReply ack(1: AckRequest request) throws (1: CallFailed failed),

  /** Not done: to be delivered again, now, later, by backoff, or never (dead). Valid only while leased. */
  OutcomesReply nack(1: NackRequest request) throws (1: CallFailed failed),

  /** Needs more time. Valid only while leased. */
  OutcomesReply extendLease(1: ExtendLeaseRequest request) throws (1: CallFailed failed),

  /** Not tried: gives items back without counting the attempt. Valid only while leased. */
  OutcomesReply release(1: ReleaseRequest request) throws (1: CallFailed failed),

  /**
   * The topics with items, by name, of the whole tier: of the called host's shards as they are, of other hosts' as they
   * told last, about a second ago. While some shard is not served, or some host has not told everything yet, the counts
   * lag, and topics of that shard or host alone are not listed; while none is served, it is UNAVAILABLE. While a shard
   * goes from one host to another, its items may be counted twice for as long.
   */
  GetActiveTopicsReply getActiveTopics(1: GetActiveTopicsRequest request) throws (1: CallFailed failed),

  /** Looks at items of a topic without delivering them. */
  ItemsReply peek(1: PeekRequest request) throws (1: CallFailed failed),

  /** Looks at one item. */
  ItemView getItem(1: GetItemRequest request) throws (1: CallFailed failed),

  /** Says why an item is not delivered, and what would change it; of one that is gone too, and of one that cannot be read. */
  ExplainReply explain(1: GetItemRequest request) throws (1: CallFailed failed),

  /** Deletes items in any state. A leased one's consumer finds it gone when it acks. */
  OutcomesReply cancel(1: CancelRequest request) throws (1: CallFailed failed),

  /** Changes priority, delay or metadata of items in any state; of a leased or dead one no time. */
  OutcomesReply update(1: UpdateRequest request) throws (1: CallFailed failed),

  /** Counts what a filter matches, before a bulk call. */
  CountItemsReply countItems(1: CountItemsRequest request) throws (1: CallFailed failed),

  /** Cancels, updates or redrives what a filter matches, a page a call. */
  BulkReply bulk(1: BulkRequest request) throws (1: CallFailed failed),

  /** Dead items by shard, then topic, then as they would be delivered. A page may be short, even empty, and not the last. */
  ItemsReply listDead(1: ListDeadRequest request) throws (1: CallFailed failed),
  /** Makes dead items ready again; one that is not dead is NOT_FOUND. */
  OutcomesReply redrive(1: RedriveRequest request) throws (1: CallFailed failed),

  /** What is not set is as the host has it by default. Repeating the call with the same settings changes nothing. */
  NamespaceSettings createNamespace(1: SetNamespaceRequest request) throws (1: CallFailed failed),
  NamespaceSettings updateNamespace(1: SetNamespaceRequest request) throws (1: CallFailed failed),
  NamespaceSettings getNamespace(1: NamespaceRequest request) throws (1: CallFailed failed),
  NamespacesReply listNamespaces(1: ListRequest request) throws (1: CallFailed failed),
  /** Refused with INVALID_ARGUMENT while the namespace holds items. */
  DoneReply deleteNamespace(1: NamespaceRequest request) throws (1: CallFailed failed),
  UsageReply getUsage(1: NamespaceRequest request) throws (1: CallFailed failed),

  DoneReply setGrant(1: GrantRequest request) throws (1: CallFailed failed),
  GrantsReply listGrants(1: NamespaceRequest request) throws (1: CallFailed failed),

  /** No more hand-outs of the topic until resumed; outlives the topic's emptiness. */
  DoneReply pauseTopic(1: TopicRequest request) throws (1: CallFailed failed),
  DoneReply resumeTopic(1: TopicRequest request) throws (1: CallFailed failed),
  /**
   * Deletes all items that the topic holds now, in every state: none of them is delivered, listed or counted any more.
   * An item that is enqueued while the call runs may survive; a lease that is held may be acked, and finds the item
   * already gone. UNKNOWN_OUTCOME: some of them may be left; call again.
   */
  PurgeReply purgeTopic(1: TopicRequest request) throws (1: CallFailed failed),
  DoneReply bindTopic(1: BindTopicRequest request) throws (1: CallFailed failed),

  ConfigDocument exportConfig(1: ListRequest request) throws (1: CallFailed failed),
  /** Replaces all of it. INVALID_ARGUMENT when a namespace that the document lacks holds items. */
  DoneReply importConfig(1: ConfigDocument request) throws (1: CallFailed failed),

  /** Shards by number; of the whole cluster, from any of its hosts. */
  ShardsReply listShards(1: ListRequest request) throws (1: CallFailed failed),
  /**
   * The calls that change which shards and hosts there are, and where shards go, say what is wanted, and are done when
   * that is recorded; the hosts follow within seconds. Each may be repeated. A host that is alone answers NOT_IMPLEMENTED.
   */
  DoneReply addShard(1: AddShardRequest request) throws (1: CallFailed failed),
  /** Forgets a drained shard: nobody serves it any more. Its tables stay, with the items that it may still hold. */
  DoneReply removeShard(1: ShardRequest request) throws (1: CallFailed failed),
  /** Hands a shard over to a host, which keeps it while it is there. */
  DoneReply moveShard(1: ShardRequest request) throws (1: CallFailed failed),
  /** The shard takes no new items; what it holds is delivered. */
  DoneReply drainShard(1: ShardRequest request) throws (1: CallFailed failed),
  DoneReply undrainShard(1: ShardRequest request) throws (1: CallFailed failed),
  /** Hosts by name; those of the whole cluster that are there now, from any of them. */
  HostsReply listHosts(1: ListRequest request) throws (1: CallFailed failed),
  /** The host's shards are handed over to others, and it gets none until undrained, over restarts too. */
  DoneReply drainHost(1: HostRequest request) throws (1: CallFailed failed),
  DoneReply undrainHost(1: HostRequest request) throws (1: CallFailed failed),

  /** Hosts and the shard map; any host answers. What waits in queues is not part of the version. */
  GetRoutingReply getRouting(1: GetRoutingRequest request) throws (1: CallFailed failed),

  /** What the called host has, and what is asked of it; hosts of a tier ask each other about once a second. For hosts alone. */
  GossipReply gossip(1: GossipRequest request) throws (1: CallFailed failed),
}
