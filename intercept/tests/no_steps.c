/* For tests that do not stop at steps of the region's protocol. */
void region_test_step(const char *step);

void region_test_step(const char *step) {
    (void)step;
}
