// Run a compiled sentence encoder from C#: no Python, no compiler of models.
//
//   Host PLUGIN MODEL TEXT...
//
// It needs the package Microsoft.ML.OnnxRuntime, 1.23.2 or newer. The arguments and what is printed are
// those of host.cc, without LIBONNXRUNTIME: the package has its own.
using System;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

static class Host
{
    static int Main(string[] arguments)
    {
        if (arguments.Length < 3)
        {
            Console.Error.WriteLine("usage: Host PLUGIN MODEL TEXT...");
            return 2;
        }
        try
        {
            Load(arguments[0], arguments[1], arguments.Skip(2).Select(Parse).ToArray());
            return 0;
        }
        catch (Exception e) when (e is OnnxRuntimeException || e is ArgumentException)
        {
            Console.Error.WriteLine("error: " + e.Message);
            return 1;
        }
    }

    // The steps of docs/deploy.md.
    static void Load(string plugin, string model, long[][] texts)
    {
        OrtEnv env = OrtEnv.Instance();
        env.RegisterExecutionProviderLibrary("pitc", plugin);
        var devices = env.GetEpDevices().Where(d => d.EpName == "PitExecutionProvider").ToList();
        using (var options = new SessionOptions())
        {
            // ONNX Runtime warns of every node that runs on its own CPU provider; here that is wanted.
            options.LogSeverityLevel = OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR;
            options.AppendExecutionProvider(env, devices, new Dictionary<string, string>());
            // By its path, not from memory: the kernels and the weights lie beside it.
            using var session = new InferenceSession(model, options);
            Run(session, texts);
        }
        env.UnregisterExecutionProviderLibrary("pitc");  // after its last session
    }

    static long[] Parse(string text)
    {
        try
        {
            var words = text.Split((char[])null, StringSplitOptions.RemoveEmptyEntries);
            return words.Select(word => long.Parse(word, CultureInfo.InvariantCulture)).ToArray();
        }
        catch (FormatException)
        {
            throw new ArgumentException("not token numbers: " + text);
        }
    }

    // One input of a BERT-like encoder, int64 [texts, longest text].
    static OrtValue MakeInput(string name, long[][] texts)
    {
        int longest = texts.Max(text => text.Length);
        var cells = new long[texts.Length * longest];  // padded with 0
        for (int row = 0; row < texts.Length; ++row)
        {
            for (int at = 0; at < texts[row].Length; ++at)
            {
                cells[row * longest + at] = name switch
                {
                    "input_ids" => texts[row][at],
                    "attention_mask" => 1,
                    "token_type_ids" => 0,
                    _ => throw new ArgumentException("this example does not know the input " + name),
                };
            }
        }
        return OrtValue.CreateTensorValueFromMemory(cells, new long[] { texts.Length, longest });
    }

    static void Run(InferenceSession session, long[][] texts)
    {
        var feeds = session.InputNames.ToDictionary(name => name, name => MakeInput(name, texts));
        using var options = new RunOptions();
        using var results = session.Run(options, feeds, session.OutputNames);
        foreach (var (name, value) in session.OutputNames.Zip(results)) Print(name, value);
        foreach (var value in feeds.Values) value.Dispose();
    }

    static void Print(string name, OrtValue value)
    {
        var info = value.GetTensorTypeAndShape();
        if (info.ElementDataType != TensorElementType.Float)
        {
            throw new ArgumentException(name + " is not float");
        }
        double checksum = 0;
        ReadOnlySpan<float> x = value.GetTensorDataAsSpan<float>();
        for (int i = 0; i < x.Length; ++i) checksum += (double)x[i] * (1 + i % 101);
        string shape = string.Join(" ", info.Shape);
        Console.WriteLine($"{name} {shape} checksum {checksum.ToString("G9", CultureInfo.InvariantCulture)}");
    }
}
