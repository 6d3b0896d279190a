/* The tests of shadow_test.c that call the library's own functions, with handles that the fake driver does not give. */
#ifndef TRANCHE_TESTS_OBJECTS_TEST_H
#define TRANCHE_TESTS_OBJECTS_TEST_H

void test_holdings_of_alike_wholes(void);
void test_replaced_mappings(void);
void test_variables_of_alike_modules(void);
void test_alike_libraries(void);
void test_library_in_a_free_context(void);
void test_two_handles_of_one_address(void);
void test_opened_during_a_close(void);
void test_mapped_while_it_ends(void);
void test_mapped_in_another_context(void);
void test_pool_memory_freed_twice(void);
void test_pool_memory_freed_twice_and_refused(void);
void test_address_again_while_it_is_freed(void);
void test_objects_that_outlive_their_context(void);
void test_replacing_what_has_changed(void);
void test_destroyed_pools_are_not_found(void);
void test_aliases_are_not_contexts(void);

#endif
