/* The epoch of dubnb/backbones/mf.py in C: the same layout, the same order of work, the same lazy Adam, loss bce.

   A table is (rows, 3, width) floats: weights and Adam's two moments; a user's weights are (p_u, b_u, 1), an item's (q_i, 1, b_i).
   Scratch space comes from the caller, so that neither side allocates within an epoch. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define AHEAD 4
#define LANE 16

typedef struct {
    int32_t *of_row, *row, *of_sample, *count;
} slots_t;

static const float KEEP_1 = 0.9f, NEW_1 = 1.0 - 0.9, KEEP_2 = 0.999f, NEW_2 = 1.0 - 0.999, EPS = 1e-8f;

static int assign_slots(const int32_t *restrict rows, int n, slots_t s) {
    int n_slots = 0;
    for (int j = 0; j < n; j++) {
        int slot = s.of_row[rows[j]];
        if (slot < 0) {
            slot = n_slots++;
            s.of_row[rows[j]] = slot;
            s.row[slot] = rows[j];
            s.count[slot] = 0;
        }
        s.of_sample[j] = slot;
        s.count[slot]++;
    }
    return n_slots;
}

static void release_slots(slots_t s, int n_slots) {
    for (int slot = 0; slot < n_slots; slot++) s.of_row[s.row[slot]] = -1;
}

static void order_by_slot(slots_t s, int n_slots, int n, int32_t *restrict starts, int32_t *restrict order) {
    int position = 0;
    for (int slot = 0; slot < n_slots; slot++) {
        starts[slot] = position;
        position += s.count[slot];
    }
    for (int j = 0; j < n; j++) order[starts[s.of_sample[j]]++] = j;
    for (int slot = n_slots; slot > 0; slot--) starts[slot] = starts[slot - 1];
    starts[0] = 0;
}

static void prefetch_row(const float *row, int floats) {
    for (int k = 0; k < floats; k += LANE) __builtin_prefetch(row + k, 0, 3);
}

static float adam(float *restrict w, float *restrict m, float *restrict v, float g, float step, float inverse) {
    *m = KEEP_1 * *m + NEW_1 * g;
    *v = KEEP_2 * *v + NEW_2 * g * g;
    return *w -= step * *m / (sqrtf(*v * inverse) + EPS);
}

static void update_row(float *restrict row, const float *restrict gradient, const float *restrict decay, int width, float step,
                       float inverse) {
    float *restrict m = row + width, *restrict v = row + 2 * width;
    for (int k = 0; k < width; k++) adam(row + k, m + k, v + k, gradient[k] + decay[k] * row[k], step, inverse);
}

typedef struct {
    float *users, *items, *b0;
    slots_t user_slots, item_slots;
    int32_t *starts, *order;
    float *gradient, *item_gradients, *decay; /* decay: lam for the factors, 0 for the other coordinates */
    int64_t width, rank, batch_size;
    double lr;
} model_t;

static double train_batch(const model_t *t, const int32_t *users, const int32_t *restrict items,
                          const float *restrict targets, const float *restrict weights, int n, float step, float inverse) {
    const int64_t width = t->width / LANE * LANE, rank = t->rank, stride = 3 * width;
    float *restrict gradient = t->gradient, *restrict item_gradients = t->item_gradients;
    const int n_users = assign_slots(users, n, t->user_slots), n_items = assign_slots(items, n, t->item_slots);
    const float b0 = t->b0[0], share = 1.0f / n;
    float b0_gradient = 0;
    double total = 0;
    order_by_slot(t->user_slots, n_users, n, t->starts, t->order);
    memset(item_gradients, 0, n_items * width * sizeof(float));
    for (int slot = 0; slot < n_users; slot++) {
        float *restrict user = t->users + t->user_slots.row[slot] * stride;
        if (slot + AHEAD < n_users) prefetch_row(t->users + t->user_slots.row[slot + AHEAD] * stride, stride);
        memset(gradient, 0, width * sizeof(float));
        for (int position = t->starts[slot]; position < t->starts[slot + 1]; position++) {
            if (position + AHEAD < n) prefetch_row(t->items + items[t->order[position + AHEAD]] * stride, width);
            const int j = t->order[position];
            const float *restrict item = t->items + items[j] * stride;
            float *restrict item_gradient = item_gradients + t->item_slots.of_sample[j] * width;
            float s = 0;
            for (int k = 0; k < width; k++) s += user[k] * item[k];
            s += b0;
            const float z = expf(-fabsf(s)), y = targets[j];
            total += weights[j] * (fmaxf(s, 0) + logf(1.0f + z) - y * s);
            const float error = share * weights[j] * ((s >= 0 ? 1.0f : z) / (1.0f + z) - y);
            b0_gradient += error;
            for (int k = 0; k < width; k++) {
                gradient[k] += error * item[k];
                item_gradient[k] += error * user[k];
            }
        }
        gradient[rank + 1] = 0; /* the constant 1 */
        update_row(user, gradient, t->decay, width, step, inverse);
    }
    for (int slot = 0; slot < n_items; slot++) {
        item_gradients[slot * width + rank] = 0; /* the constant 1 */
        update_row(t->items + t->item_slots.row[slot] * stride, item_gradients + slot * width, t->decay, width, step,
                   inverse);
    }
    adam(t->b0, t->b0 + 1, t->b0 + 2, b0_gradient, step, inverse);
    release_slots(t->user_slots, n_users);
    release_slots(t->item_slots, n_items);
    return total;
}

/* One pass over n samples; `done` steps were made before. Returns the sum of weighted losses. */
double mf_epoch(const model_t *t, const int32_t *users, const int32_t *items, const float *targets,
                const float *weights, int64_t n, int64_t done) {
    double total = 0;
    for (int64_t start = 0; start < n; start += t->batch_size) {
        const int size = n - start < t->batch_size ? n - start : t->batch_size;
        done++;
        const float step = t->lr / (1.0 - pow(0.9, done)), inverse = 1.0 / (1.0 - pow(0.999, done));
        total += train_batch(t, users + start, items + start, targets + start, weights + start, size, step, inverse);
    }
    return total;
}
