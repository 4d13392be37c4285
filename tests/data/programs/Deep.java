// Deep stacks: 20 times more than there is room for, or 20,000 system calls below 3,000 frames.
public class Deep {
    static int depth;

    static void down() {
        depth++;
        down();
    }

    static int below(int frames) {
        if (frames > 0) return below(frames - 1) + 1;
        int found = 0;
        for (int i = 0; i < 20000; i++) if (new java.io.File("/nowhere/" + i % 10).exists()) found++;
        return found;
    }

    public static void main(String[] args) {
        if (args[0].equals("exists")) {
            System.out.println(below(3000));
            return;
        }
        int overflows = 0;
        for (int i = 0; i < 20; i++) {
            try {
                down();
            } catch (StackOverflowError error) {
                overflows++;
            }
        }
        System.out.println(overflows);
    }
}
