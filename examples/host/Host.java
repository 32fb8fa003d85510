// Run a compiled sentence encoder from Java: no Python, no compiler of models.
//
//   javac -cp onnxruntime.jar -d . Host.java && java -cp onnxruntime.jar:. Host PLUGIN MODEL TEXT...
//
// onnxruntime.jar  ONNX Runtime for Java, 1.23.2 or newer: com.microsoft.onnxruntime:onnxruntime
// The arguments and what is printed are those of host.cc, without LIBONNXRUNTIME: the jar has its own.
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OnnxValue;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtEpDevice;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtLoggingLevel;
import ai.onnxruntime.OrtSession;
import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

public final class Host {
  public static void main(String[] arguments) {
    if (arguments.length < 3) {
      System.err.println("usage: Host PLUGIN MODEL TEXT...");
      System.exit(2);
    }
    String[] texts = Arrays.copyOfRange(arguments, 2, arguments.length);
    try {
      load(arguments[0], arguments[1], Arrays.stream(texts).map(Host::parse).toArray(long[][]::new));
    } catch (OrtException | IllegalArgumentException e) {
      System.err.println("error: " + e.getMessage());
      System.exit(1);
    }
  }

  // The steps of docs/deploy.md.
  private static void load(String plugin, String model, long[][] texts) throws OrtException {
    OrtEnvironment env = OrtEnvironment.getEnvironment();
    env.registerExecutionProviderLibrary("pitc", plugin);
    List<OrtEpDevice> devices =
        env.getEpDevices().stream()
            .filter(device -> device.getEpName().equals("PitExecutionProvider"))
            .toList();
    try (OrtSession.SessionOptions options = new OrtSession.SessionOptions()) {
      // ONNX Runtime warns of every node that runs on its own CPU provider; here that is wanted.
      options.setSessionLogLevel(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR);
      options.addExecutionProvider(devices, Map.of());
      // By its path, not from memory: the kernels and the weights lie beside it.
      try (OrtSession session = env.createSession(model, options)) {
        run(env, session, texts);
      }
    }
    env.unregisterExecutionProviderLibrary("pitc"); // after its last session
  }

  private static long[] parse(String text) {
    try {
      String[] words = text.trim().split("\\s+");
      return Arrays.stream(words).filter(word -> !word.isEmpty()).mapToLong(Long::parseLong).toArray();
    } catch (NumberFormatException e) {
      throw new IllegalArgumentException("not token numbers: " + text);
    }
  }

  // One input of a BERT-like encoder, int64 [texts, longest text].
  private static OnnxTensor makeInput(OrtEnvironment env, String name, long[][] texts)
      throws OrtException {
    int longest = Arrays.stream(texts).mapToInt(text -> text.length).max().orElse(0);
    long[][] cells = new long[texts.length][];
    for (int row = 0; row < texts.length; ++row) {
      long[] cell =
          switch (name) {
            case "input_ids" -> texts[row].clone();
            case "attention_mask" -> Arrays.stream(texts[row]).map(token -> 1).toArray();
            case "token_type_ids" -> new long[0];
            default ->
                throw new IllegalArgumentException("this example does not know the input " + name);
          };
      cells[row] = Arrays.copyOf(cell, longest); // padded with 0
    }
    return OnnxTensor.createTensor(env, cells);
  }

  private static void run(OrtEnvironment env, OrtSession session, long[][] texts)
      throws OrtException {
    Map<String, OnnxTensor> feeds = new HashMap<>();
    for (String name : session.getInputNames()) feeds.put(name, makeInput(env, name, texts));
    try (OrtSession.Result results = session.run(feeds)) {
      for (Map.Entry<String, OnnxValue> result : results) print(result.getKey(), result.getValue());
    } finally {
      OnnxValue.close(feeds);
    }
  }

  private static void print(String name, OnnxValue value) {
    FloatBuffer x = value instanceof OnnxTensor tensor ? tensor.getFloatBuffer() : null;
    if (x == null) throw new IllegalArgumentException(name + " is not float");
    StringBuilder line = new StringBuilder(name);
    for (long extent : ((OnnxTensor) value).getInfo().getShape()) line.append(' ').append(extent);
    double checksum = 0;
    for (int i = 0; i < x.limit(); ++i) checksum += (double) x.get(i) * (1 + i % 101);
    System.out.println(line + String.format(Locale.ROOT, " checksum %.9g", checksum));
  }
}
