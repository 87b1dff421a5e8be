/* order.c - who is served before whom: priority, then the tenant that has had least, then class and arrival.
 *
 * Tenants share an account where their hashes collide; an account whose list was empty starts from what the last one served had
 * had, so that nobody saves up. Source: Sheng et al., Fairness in Serving Large Language Models (OSDI 2024, arXiv 2401.00588): virtual token
 * counters, a prompt charged when it is admitted, answers token by token. */
#include "base/hash.h"
#include "sched/sched_state.h"

enum { RESERVED_PART = 8 };                            /* of slots and blocks */
static const int64_t OTHERS_NS = INT64_C(10000000000); /* how long others are reckoned with */

int64_t order_due(const struct sched *sched, const struct sequence *seq)
{
    return seq->arrived_ns + sequence_class(seq) * sched->options.class_age_ns;
}

bool order_before(const struct sched *sched, const struct sequence *a, const struct sequence *b)
{
    int64_t due_a = order_due(sched, a), due_b = order_due(sched, b);

    if (a->priority != b->priority) return a->priority > b->priority;
    if (due_a != due_b) return due_a < due_b;
    return a->arrival < b->arrival;
}

void order_init(struct sched *sched)
{
    for (uint32_t i = 0; i < ACCOUNTS; i++) {
        struct account *account = &sched->accounts[i];

        *account = (struct account){.waiting = {&account->waiting, &account->waiting}};
    }
}

static struct account *account_of(struct sched *sched, const struct sequence *seq)
{
    return &sched->accounts[seq->account];
}

static void note_arrival(struct sched *sched, const struct account *account, int64_t now_ns)
{
    if (sched->recent[0].account != account) sched->recent[1] = sched->recent[0];
    sched->recent[0].account = account;
    sched->recent[0].ns = now_ns;
}

/* An account that holds more than its share leaves some slots and blocks to others, as long as there are any: so that who comes next need
 * not wait for one of its answers to end. */
static bool has_its_share(const struct sched *sched, const struct account *account)
{
    uint32_t slots = sched->options.max_num_seqs, other = sched->recent[0].account == account;

    if (!sched->recent[other].account || account->holds <= slots / (sched->holder_count + 1) ||
        sched->now_ns - sched->recent[other].ns > OTHERS_NS)
        return false;
    if (sched->free_slot_count <= slots / RESERVED_PART) return true;
    for (uint32_t g = 0; g < sched->kv.group_count; g++) {
        const struct kv_pool *pool = sched->kv.pools[g];

        if (kv_pool_available_count(pool) <= kv_pool_capacity(pool) / RESERVED_PART) return true;
    }
    return false;
}

/* Almost always the end of the list: the search starts there. */
void order_enqueue(struct sched *sched, struct sequence *seq)
{
    uint32_t number = (uint32_t)(hash_mix64(seq->tenant) % ACCOUNTS);
    struct account *account = &sched->accounts[number];
    struct seq_link *head = &account->waiting, *after = head->prev;

    seq->account = (uint16_t)number;
    note_arrival(sched, account, seq->arrived_ns);
    flood_arrival(sched, account, seq->arrived_ns);
    if (head->next == head && account->served < sched->served) account->served = sched->served;
    if (!account->listed) {
        account->listed = true;
        sched->listed[sched->listed_count++] = account;
    }
    while (after != head && order_before(sched, seq, sched_link_seq(after)))
        after = after->prev;
    seq->link.prev = after;
    seq->link.next = after->next;
    after->next->prev = &seq->link;
    after->next = &seq->link;
    seq->state = SEQ_WAITING;
    sched->counts[SEQ_WAITING]++;
}

/* Whether `seq` of `account` is to be served before `best` of `other`. */
static bool goes_before(const struct sched *sched, const struct account *account,
                        const struct sequence *seq, const struct account *other,
                        const struct sequence *best)
{
    if (seq->priority == best->priority && account->served != other->served)
        return account->served < other->served;
    return order_before(sched, seq, best);
}

struct sequence *order_first(struct sched *sched,
                             bool (*may_start)(struct sched *sched, struct sequence *seq))
{
    struct sequence *best = NULL;
    struct account *best_account = NULL;

    for (uint32_t i = 0; i < sched->listed_count;) {
        struct account *account = sched->listed[i];
        const struct seq_link *head = &account->waiting;

        if (head->next == head) { /* nobody of it waits any more */
            account->listed = false;
            sched->listed[i] = sched->listed[--sched->listed_count];
            continue;
        }
        bool may = !has_its_share(sched, account) && flood_may_start(sched, account);

        for (const struct seq_link *link = head->next; link != head && may; link = link->next) {
            struct sequence *seq = sched_link_seq(link);

            if (best && !goes_before(sched, account, seq, best_account, best)) break;
            if (!may_start(sched, seq)) continue;
            best = seq;
            best_account = account;
            break;
        }
        i++;
    }
    return best;
}

void order_admitted(struct sched *sched, struct sequence *seq, uint32_t tokens)
{
    struct account *account = account_of(sched, seq);

    if (account->served > sched->served) sched->served = account->served;
    account->served += tokens;
    flood_admitted(sched, account, seq, tokens);
    sched->holder_count += account->holds++ == 0;
}

void order_released(struct sched *sched, const struct sequence *seq)
{
    sched->holder_count -= --account_of(sched, seq)->holds == 0;
}

void order_sampled(struct sched *sched, const struct sequence *seq)
{
    struct account *account = account_of(sched, seq);

    account->served++;
    account->rate++;
}

int64_t order_oldest_ns(const struct sched *sched, int64_t now_ns)
{
    int64_t oldest_ns = now_ns;

    for (uint32_t i = 0; i < sched->listed_count; i++) {
        const struct seq_link *head = &sched->listed[i]->waiting;

        for (const struct seq_link *link = head->next; link != head; link = link->next)
            if (sched_link_seq(link)->arrived_ns < oldest_ns)
                oldest_ns = sched_link_seq(link)->arrived_ns;
    }
    return oldest_ns;
}
