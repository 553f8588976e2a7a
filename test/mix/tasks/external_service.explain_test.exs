# SPDX-License-Identifier: Apache-2.0

defmodule Mix.Tasks.ExternalService.ExplainTest do
  # The shell of mix is one for all.
  use ExternalService.Case, async: false

  alias Mix.Tasks.ExternalService.Explain

  defmodule Mail do
    use ExternalService, retry: [base: 100, max_attempts: 3]
  end

  defmodule Named do
    use ExternalService, name: {:mail, 1}, retry: [retry_on: fn result -> result == :busy end]
  end

  defmodule Covered do
    use ExternalService, fallback: :put_aside

    def put_aside(_error), do: {:ok, :put_aside}
  end

  defmodule Incomplete do
    use ExternalService, rate_limit: [limit: 10]
  end

  defmodule Other do
  end

  setup do
    shell = Mix.shell()
    on_exit(fn -> Mix.shell(shell) end)
    Mix.shell(Mix.Shell.Process)
  end

  defp explained(arguments) do
    Explain.run(arguments)
    assert_received {:mix_shell, :info, [text]}
    text
  end

  test "prints what explain/1 says of the module's options, and starts nothing" do
    assert explained([inspect(Mail)]) == ExternalService.explain(name: Mail, retry: [base: 100, max_attempts: 3])
    assert Mail not in ExternalService.services()
  end

  test "calls a service by its own name" do
    assert explained([inspect(Named)]) =~ ~r/^\{:mail, 1\}\n/
  end

  test "takes a fallback that is a function of the module" do
    assert explained([inspect(Covered)]) =~ ~r/^    fallback +answers in the place of an error$/m
  end

  test "says that there is no such module" do
    error = assert_raise Mix.Error, fn -> Explain.run(["No.Such.Module"]) end
    assert error.message == "There is no module No.Such.Module."
  end

  test "says that the module does not use ExternalService" do
    error = assert_raise Mix.Error, fn -> Explain.run([inspect(Other)]) end
    assert error.message == "#{inspect(Other)} does not use ExternalService."
  end

  test "says which options are wrong or missing" do
    error = assert_raise Mix.Error, fn -> Explain.run([inspect(Incomplete)]) end
    assert error.message =~ "The options of #{inspect(Incomplete)} alone do not start a service: required :per option"
  end

  test "asks for one module" do
    for arguments <- [[], ["A", "B"]] do
      assert_raise Mix.Error, ~r/mix external_service.explain MyApp.Mail/, fn -> Explain.run(arguments) end
    end
  end
end
