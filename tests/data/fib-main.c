/* Calls the main function of fib.c, which is in a library. */
int fib_main(int argc, char **argv);

int main(int argc, char **argv) { return fib_main(argc, argv); }
