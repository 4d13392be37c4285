// A small text tool, for the README's demo: makes lines of words and sums, counts the words in a hash
// table, sorts them by frequency, and works the sums out by recursive descent. Argument: lines of text.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct word {
    struct word *next;
    unsigned count;
    char text[];
};

static struct word *table[4096];
static size_t words;

static unsigned next_random(unsigned below) {
    static unsigned long state = 1;
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return (state >> 33) % below;
}

static char *put_number(char *to, unsigned n) {
    if (n >= 10) to = put_number(to, n / 10);
    *to++ = '0' + n % 10;
    return to;
}

static void make_line(char *to) {
    for (int i = 0; i < 8; i++) {
        *to++ = 'w';
        to = put_number(to, next_random(1 + next_random(20000)));
        *to++ = ' ';
    }
    *to++ = '(';
    for (int i = 0; i < 3; i++) to = put_number(to, next_random(100)), *to++ = i < 2 ? '+' : ')';
    *to++ = '*';
    *put_number(to, next_random(100)) = 0;
}

static unsigned hash(const char *s, size_t len) {
    unsigned h = 2166136261u;
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h;
}

static struct word *find_word(const char *s, size_t len) {
    struct word **at = &table[hash(s, len) % 4096];
    for (; *at; at = &(*at)->next)
        if (memcmp((*at)->text, s, len) == 0 && (*at)->text[len] == 0) return *at;
    *at = calloc(1, sizeof **at + 16);
    memcpy((*at)->text, s, len);
    words++;
    return *at;
}

// sum: product { "+" product }; product: atom { "*" atom }; atom: number | "(" sum ")"
static unsigned parse_sum(const char **s);

static unsigned parse_atom(const char **s) {
    unsigned value = 0;
    if (**s == '(') {
        ++*s;
        value = parse_sum(s);
        ++*s;
    }
    for (; **s >= '0' && **s <= '9'; ++*s) value = value * 10 + (**s - '0');
    return value;
}

static unsigned parse_product(const char **s) {
    unsigned value = parse_atom(s);
    while (**s == '*') ++*s, value *= parse_atom(s);
    return value;
}

static unsigned parse_sum(const char **s) {
    unsigned value = parse_product(s);
    while (**s == '+') ++*s, value += parse_product(s);
    return value;
}

static unsigned read_line(const char *s) {
    while (*s == 'w') {
        size_t len = strcspn(s, " ");
        find_word(s, len)->count++;
        s += len + 1;
    }
    return parse_sum(&s);
}

static int by_count(const void *a, const void *b) {
    const struct word *x = *(struct word *const *)a, *y = *(struct word *const *)b;
    return x->count != y->count ? (x->count < y->count) - (x->count > y->count) : strcmp(x->text, y->text);
}

static void print_most_frequent(void) {
    struct word **all = malloc((words + 1) * sizeof *all), **end = all;
    for (size_t i = 0; i < 4096; i++)
        for (struct word *w = table[i]; w; w = w->next) *end++ = w;
    qsort(all, words, sizeof *all, by_count);
    for (size_t i = 0; i < words && i < 3; i++) printf("%8u %s\n", all[i]->count, all[i]->text);
    free(all);
}

int main(int argc, char **argv) {
    unsigned sum = 0;
    for (long left = argc > 1 ? atol(argv[1]) : 400000; left > 0; left--) {
        char line[256];
        make_line(line);
        sum += read_line(line);
    }
    print_most_frequent();
    printf("%zu words, sum %u\n", words, sum);
    return 0;
}
