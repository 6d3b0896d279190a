/* For tests that stop nowhere in the region's protocol. */
void region_test_step(const char *step);

void region_test_step(const char *step) {
    (void)step;
}
