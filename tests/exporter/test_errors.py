from exporter.errors import ContractError, UserError


def test_contract_errors_are_user_errors() -> None:
    assert issubclass(ContractError, UserError)
